"""Worker groups on this machine, without a cluster: child processes, or this very process."""
