"""Seconds of training to a target accuracy on real data, three seeds each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autotune.schedules import Linear, warmed
from gpu_stages.findings import Finding, Run, measured, not_run
from trainers.data.images import FILES
from trainers.image import train

SEEDS = (1, 2, 3)
COMMON = {
    "optimizer": "sgd",
    "nesterov": True,
    "momentum": 0.9,
    "precision": "bf16",
    "channels_last": True,
    "label_smoothing": 0.1,
}


@dataclass(frozen=True)
class Goal:
    """A data set, an accuracy, and settings that a person would choose for it."""

    data: str
    accuracy: float
    setting: dict[str, Any]
    peak: float

    def config(self, seed: int) -> dict[str, Any]:
        lr = warmed(Linear(self.peak, 0.0), 0.2)
        return {**COMMON, "data": self.data, "lr": lr, "seed": seed, **self.setting}


GOALS = (
    Goal(
        "fashion_mnist",
        0.925,
        {
            "model": "resnet8",
            "width": 64,
            "batch_size": 512,
            "horizon": 9.0,
            "augment": "flip",
            "weight_decay": 5e-4,
            "milestone": 30_000,
            "max_epochs": 11,
        },
        peak=0.4,
    ),
    Goal(
        "fashion_mnist",
        0.935,
        {
            "model": "resnet18",
            "width": 64,
            "batch_size": 512,
            "horizon": 16.0,
            "augment": "crop+flip+cutout",
            "weight_decay": 5e-4,
            "milestone": 60_000,
            "max_epochs": 18,
        },
        peak=0.4,
    ),
    Goal(
        "cifar10",
        0.94,
        {
            "model": "resnet18",
            "width": 64,
            "batch_size": 512,
            "horizon": 18.0,
            "augment": "crop+flip+cutout",
            "weight_decay": 5e-4,
            "milestone": 50_000,
            "max_epochs": 20,
        },
        peak=0.4,
    ),
)
TINY = Goal(
    "digits",
    0.5,
    {
        "model": "mlp",
        "width": 32,
        "batch_size": 64,
        "horizon": 3.0,
        "milestone": 500,
        "max_epochs": 4,
    },
    peak=0.1,
)


def times_to_target(run: Run) -> Iterator[Finding]:
    """Every goal with its first seed, then with the next ones."""
    goals = [TINY] if run.tiny else [goal for goal in GOALS if not _missing(run, goal)]
    for goal in () if run.tiny else GOALS:
        if why := _missing(run, goal):
            yield not_run(_label(goal), why)
    seconds: dict[str, list[float]] = {_label(goal): [] for goal in goals}
    longest = {_label(goal): 0.0 for goal in goals}
    for seed in SEEDS[: run.pick(3, 1)]:
        for goal in goals:
            label = _label(goal)
            if run.left < 1.3 * longest[label] + 3:
                yield not_run(f"{label}, seed {seed}", f"no time: {run.left:.0f} s are left")
                continue
            begin = time.perf_counter()
            yield from _one(run, goal, seed, seconds[label])
            longest[label] = time.perf_counter() - begin
    for label, found in seconds.items():
        if found:
            text = f"{min(found):.3g} to {max(found):.3g}, {len(found)} seeds"
            yield measured(label, statistics.median(found), "s of training", text)


def _one(run: Run, goal: Goal, seed: int, reached: list[float]) -> Iterator[Finding]:
    """Train once, on the clock of training; appends the seconds if the target is reached."""
    clock, best = 0.0, 0.0
    trainer = train({**goal.config(seed), "data_dir": run.data_dir})
    name = f"{_label(goal)}, seed {seed}"
    try:
        next(trainer)
        while True:
            _wait(run)
            begin = time.perf_counter()
            milestone = next(trainer, None)
            _wait(run)
            if milestone is None:
                break
            took = time.perf_counter() - begin
            clock += took
            best = max(best, milestone.evaluate()["val_accuracy"])
            if best >= goal.accuracy:
                reached.append(clock)
                yield measured(name, clock, "s of training")
                return
            if run.left < 2 * took + 2:
                yield not_run(name, f"no time after {clock:.0f} s of training")
                return
    finally:
        trainer.close()
    verdict = "measured" if run.tiny else "missed"
    yield Finding(name, verdict, best, aim=f"{goal.accuracy:g}", text=f"after {clock:.1f} s")


def _label(goal: Goal) -> str:
    return f"{goal.data} to {100 * goal.accuracy:g} %"


def _missing(run: Run, goal: Goal) -> str:
    """Why a goal's data cannot be used, or an empty text."""
    folder = Path(run.data_dir or "data", goal.data)
    absent = [name for name in FILES[goal.data] if not (folder / name).exists()]
    if absent:
        return f"{', '.join(absent)} not in $AUTOTUNE_DATA/{goal.data}"
    if goal.data == "cifar10":
        count = sum(len(np.load(file)["y"]) for file in sorted(folder.glob("train_*.npz")))
        return "" if count == 50_000 else f"{count} of 50000 images in $AUTOTUNE_DATA/cifar10"
    return ""


def _wait(run: Run) -> None:
    if run.on_gpu:
        torch.cuda.synchronize(run.device)
