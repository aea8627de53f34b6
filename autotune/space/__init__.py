"""What is searched: parameters, schedules, couplings, constraints."""
