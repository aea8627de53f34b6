"""Training of the sampler `policy` over simulated studies (`autotune train-policy`)."""
