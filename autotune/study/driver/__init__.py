"""The loop of one driver: suggestions, decisions, checkpoints, forks, repeats and recovery."""
