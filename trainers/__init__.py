"""Trainers that know torch, `Milestone` and schedules, and nothing of the services around them."""
