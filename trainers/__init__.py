"""Trainers in plain PyTorch that yield `Milestone`s; they depend on schedules and trial only."""
