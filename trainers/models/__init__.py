"""Models; each says of itself what a plan of its training needs to know."""
