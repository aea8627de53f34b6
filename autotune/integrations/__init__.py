"""Integrations with Lightning, Hugging Face and Optuna."""
