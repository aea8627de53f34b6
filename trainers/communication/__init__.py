"""What copies of a model send each other in a step, and how often."""
