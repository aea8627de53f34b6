"""The study folder on disk: journal, JSON codec, checkpoint files, retention."""
