"""The study's loop, and each thing that it does for a trial in a module of its own."""
