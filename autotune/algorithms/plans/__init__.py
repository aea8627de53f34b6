"""Plans: what changes only the seconds per sample of a training is measured, and then fixed."""
