"""A dense perceptron of digits against small ones: megabytes, milliseconds, accuracy, three seeds.

    python benchmarks/smaller_models.py [--repeats 3] [--quick] [--json FILE]

The small ones have fewer units, channels or weights removed, and weights of 8 bits, rounded after
training or all along (QAT); one learns from the dense one of seed 0. A repeat is a seed.
"""

from __future__ import annotations

import statistics
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from _common import arguments, introduce, keep, missing, repeats_of

from autotune.schedules import Cosine
from trainers import image
from trainers.compression.exported import MEASURES

EPOCHS = 30.0
COMMON: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "optimizer": "adamw",
    "lr": Cosine(3e-3, 3e-5),
    "weight_decay": 0.05,
    "batch_size": 64,
}
DENSE: dict[str, Any] = {"width": 512}
WEIGHTS: dict[str, Any] = {
    "width": 128,
    "pruning": "unstructured",
    "sparsity": 0.7,
    "quantization": "post_training",
}
CHANNELS: dict[str, Any] = {
    "width": 256,
    "pruning": "structured",
    "sparsity": 0.5,
    "quantization": "post_training",
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
    parser = arguments(__doc__ or "", repeats=3)
    options = parser.parse_args()
    about, raw = introduce(), list[dict[str, Any]]()
    torch.set_num_threads(1)
    print(f"{'model':<44}{'MB':>8}{'ms':>8}  accuracy, and its mean")
    with tempfile.TemporaryDirectory() as folder:
        teacher = Path(folder) / "teacher.pt"
        channels = "256 wide, half of channels removed"
        models = {
            "dense, 512 wide": DENSE,
            "128 wide, 70 % of weights removed": WEIGHTS,
            channels: CHANNELS,
            f"{channels}, QAT": {**CHANNELS, "quantization": "qat"},
            f"{channels}, taught": {**CHANNELS, "teacher": str(teacher)},
        }
        for name, config in models.items():
            if config.get("quantization") == "qat" and (lacks := missing("torchao")):
                print(f"{name:<44}  skipped: {lacks}", flush=True)
                continue
            runs = []
            for seed in range(repeats_of(options)):
                horizon = 1.0 if options.quick else EPOCHS
                full = {**COMMON, **config, "horizon": horizon, "seed": seed}
                first = config is DENSE and seed == 0
                runs.append(trained(full, teacher if first else None))
                raw.append({"model": name, "seed": seed, **runs[-1]})
            print_row(name, runs)
    keep(options.json, about, runs=raw)


def print_row(name: str, runs: list[dict[str, float]]) -> None:
    """One model, with all seeds."""
    right = [run["val_accuracy"] for run in runs]
    size, latency = (statistics.median(r[m] for r in runs) for m in MEASURES)
    shown = " ".join(f"{x:.4f}" for x in right)
    print(
        f"{name:<44}{size:>8.3f}{latency:>8.3f}  {shown}  {statistics.mean(right):.4f}", flush=True
    )


if __name__ == "__main__":
    main()
