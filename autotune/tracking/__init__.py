"""Where results go: the journal is the truth, MLflow a view of it."""
