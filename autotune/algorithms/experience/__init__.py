"""What other studies are worth to a new one: their results as a model of its configurations."""
