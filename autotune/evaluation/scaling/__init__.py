"""Time to target and cost at other batch sizes and numbers of workers, from one study's trials."""
