"""Experience: summaries of studies, kept in a folder, from which later studies begin."""
