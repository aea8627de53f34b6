"""Controllers: `(trial, others, target)` to a `Change` of knobs, a `Fork`, or None."""
