"""Data sets, and the streams of batches that are made of them."""
