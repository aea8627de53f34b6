"""A sampler that is a network, trained over simulated studies by `autotune train-policy`."""
