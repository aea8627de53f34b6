"""Worker groups as the driver sees them, whatever starts their processes."""
