"""MLflow as a view of the journal: runs, backups, models."""
