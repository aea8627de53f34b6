"""Worker groups on a Ray cluster, as the driver sees them."""
