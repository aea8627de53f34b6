"""The stages of `benchmarks/gpu.py`, one file a group; `listed.py` has their order and deadlines."""
