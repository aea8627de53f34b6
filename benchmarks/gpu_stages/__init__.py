"""The stages of `benchmarks/gpu.py`, a file for each group of them; `listed.py` has their order."""
