"""Smaller models: weights or channels that are removed, weights of 8 bits, a teacher to learn from.

Evaluations are of the model that is exported: masked to the sparsity that the training comes to in
the end, with the weights that its file has. So a target that is reached holds for that file.
"""
