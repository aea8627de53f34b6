"""One study: its experiment, options, parts, run and result."""
