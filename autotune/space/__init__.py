"""Search spaces: parameters, schedules, couplings, constraints."""
