"""Which trials are ahead: indexes, equal-time ranks, repeats, races, finalists."""
