"""What people see of a study that runs: a live table, a notebook's cell, or a line an event."""
