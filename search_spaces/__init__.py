"""Recipes: functions that return a complete `Experiment`."""
