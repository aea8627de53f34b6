"""After the study: comparison, export, replay and registered models."""
