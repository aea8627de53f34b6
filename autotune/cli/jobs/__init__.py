"""Studies as jobs of a Ray cluster."""
