"""A trial as a folder that trains alone, and what its replay shows."""
