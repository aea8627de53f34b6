"""Recorded learning curves of others, as studies: LCBench's development tasks and TaskSet's."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _recorded import Curves, Study, drawn, with_effective

LCBENCH, TASKSET = "lcbench_dev.npz", "taskset"
_NAMES = {
    "learning_rate": "lr",
    "max_units": "width",
    "max_dropout": "dropout",
    "beta1": "momentum",
    "l2": "weight_decay",
}
"""Canonical names of the tables' columns; the others keep their own."""
_STEPS = 200  # of TaskSet between two evaluations


def lcbench(folder: Path, rows: int, seed: int) -> Iterator[tuple[Study, Curves]]:
    """LCBench's tasks: SGD on tabular data, accuracies in per cent.

    The limit is the median time of a whole run of 52 epochs.

    Args:
        folder: with `lcbench_dev.npz`.
        rows: that are taken of each task, drawn by the seed.
    """
    table = np.load(folder / LCBENCH)
    columns = {key.removeprefix("cfg_"): table[key] for key in table if key.startswith("cfg_")}
    accuracy = table["val_accuracy"].astype(float)
    seconds = np.maximum.accumulate(table["time"].astype(float), axis=2)
    for own, task in enumerate(table["tasks"]):
        limit = float(np.median(seconds[own, :, -1]))
        study = Study(f"lcbench-{task}", "LCBench", "val_accuracy", "max", limit)
        curves = Curves()
        for row in drawn(accuracy.shape[1], rows, (seed, own)):
            values = {_NAMES.get(k, k): column[row].item() for k, column in columns.items()}
            point = {**with_effective(values), "optimizer": "sgd"}
            curves.add(point, seconds[own, row], accuracy[own, row])
        yield study, curves


def taskset(folder: Path, rows: int, seed: int) -> Iterator[tuple[Study, Curves]]:
    """TaskSet's tasks: Adam on recurrent networks, the validation loss by steps.

    Adam's L2 penalty stands as the weight decay, and Adam as `adamw`, as their learning rates are
    on one scale.

    Args:
        folder: with the folder `taskset` of `*.json.gz`.
        rows: that are taken of each task, drawn by the seed.
    """
    for own, file in enumerate(sorted((folder / TASKSET).glob("*.json.gz"))):
        table = json.loads(gzip.decompress(file.read_bytes()))
        count = len(table[0]["valid"]["loss"])
        study = Study(
            f"taskset-{file.name.removesuffix('.json.gz')}"[:80],
            "TaskSet",
            "val_loss",
            "min",
            float((count - 1) * _STEPS),
            clock="steps",
        )
        curves = Curves()
        for row in drawn(len(table), rows, (seed, own)):
            values = {_NAMES.get(k, k): v for k, v in table[row]["hp"].items()}
            steps = [_STEPS * i for i in range(1, count)]
            point = {**with_effective(values), "optimizer": "adamw"}
            curves.add(point, steps, _numbers(table[row]["valid"]["loss"][1:]))
        yield study, curves


def _numbers(values: list[Any]) -> list[float]:
    """Losses as floats; what is none (a diverged run) is not a number."""
    return [float("nan") if v is None else float(v) for v in values]
