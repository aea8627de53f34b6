"""Integrations with Lightning, Hugging Face and Optuna, and existing scripts as trainers."""
