"""What a step keeps in memory, and in how many bits it computes."""
