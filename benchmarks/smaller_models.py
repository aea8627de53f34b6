"""A dense perceptron of digits against small ones: megabytes, milliseconds, accuracy, three seeds.

    python benchmarks/smaller_models.py

The small ones have fewer units, channels or weights removed, and weights of 8 bits; one learns from
the dense one of seed 0.
"""

from __future__ import annotations

import statistics
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from autotune.schedules import Cosine
from trainers import image
from trainers.compression.exported import MEASURES

SEEDS = (0, 1, 2)
COMMON: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "optimizer": "adamw",
    "lr": Cosine(3e-3, 3e-5),
    "weight_decay": 0.05,
    "batch_size": 64,
    "horizon": 30.0,
}
DENSE: dict[str, Any] = {"width": 512}
SMALL: dict[str, dict[str, Any]] = {
    "128 wide, 70 % of weights removed": {
        "width": 128,
        "pruning": "unstructured",
        "sparsity": 0.7,
        "quantization": "post_training",
    },
    "256 wide, half of channels removed": {
        "width": 256,
        "pruning": "structured",
        "sparsity": 0.5,
        "quantization": "post_training",
    },
}


def trained(config: dict[str, Any], file: Path | None = None) -> dict[str, float]:
    """What a training over its horizon comes to; its model goes to a file, if one is given."""
    milestones = image.train(config)
    found: dict[str, float] = {}
    for here in milestones:
        evaluated = here.evaluate()
        assert not isinstance(evaluated, Future)
        found = dict(evaluated)
        if found["progress"] >= 1:
            break
    assert here.measure is not None
    assert here.state is not None
    metrics = {**found, **here.measure()}
    if file is not None:
        torch.save(image.saved(config, [here.state()]), file)
    milestones.close()
    return metrics


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'model':<44}{'MB':>8}{'ms':>8}  accuracy, and its mean")
    with tempfile.TemporaryDirectory() as folder:
        teacher = Path(folder) / "teacher.pt"
        print_row("dense, 512 wide", DENSE, teacher)
        for name, config in SMALL.items():
            print_row(name, config)
        print_row(f"{name}, taught", {**config, "teacher": str(teacher)})


def print_row(name: str, config: dict[str, Any], file: Path | None = None) -> None:
    """One model with all seeds; the first seed's is written to the file."""
    runs = [trained({**COMMON, **config, "seed": s}, None if s else file) for s in SEEDS]
    right = [run["val_accuracy"] for run in runs]
    size, latency = (statistics.median(r[m] for r in runs) for m in MEASURES)
    shown = " ".join(f"{x:.4f}" for x in right)
    print(
        f"{name:<44}{size:>8.3f}{latency:>8.3f}  {shown}  {statistics.mean(right):.4f}", flush=True
    )


if __name__ == "__main__":
    main()
