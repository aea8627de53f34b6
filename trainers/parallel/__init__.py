"""How the ranks of a training divide its work: one file for each technique."""
