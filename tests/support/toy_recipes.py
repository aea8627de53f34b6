"""Recipes for the command line's tests: right ones, and each mistake that a user can make."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import autotune as at


def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Accuracy grows with each step; `speed` says by how much."""
    accuracy, step = 0.0, 0
    while True:
        now = accuracy
        yield at.Milestone(step, lambda now=now: {"val_accuracy": now, "train_loss": 1 - now})
        accuracy, step = accuracy + config["speed"], step + 10


def paced(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """As `train`, with a tenth of a second to each step."""
    for milestone in train(config):
        time.sleep(0.1)
        yield milestone


def raising(config: dict[str, Any]) -> Iterator[at.Milestone]:
    yield at.Milestone(0, dict)
    raise RuntimeError("a bug of the trainer's")


def silent(config: dict[str, Any]) -> None:
    """It prints its result, where nobody looks."""
    print(config["speed"])


SPACE = at.SearchSpace({"speed": at.Float(0.05, 0.5, log=True)})
TARGET = at.Target("val_accuracy", 0.9, limit=600)


def good() -> at.Experiment:
    return at.Experiment("toy", train, SPACE, TARGET, baseline={"speed": 0.1})


def paced_by(speed: float, folder: Path | None = None) -> at.Experiment:
    """A recipe with arguments."""
    space = at.SearchSpace({"speed": at.Float(0.05, 0.5, log=True), "in": at.Fixed(str(folder))})
    return at.Experiment("toy", train, space, TARGET, baseline={"speed": speed})


def beaten() -> at.Experiment:
    """Its second trial is nine times as fast as the baseline."""
    target = at.Target("val_accuracy", 0.9, limit=600)
    slow, fast = {"speed": 0.05}, {"speed": 0.5}
    return at.Experiment("toy", paced, SPACE, target, baseline=slow, configs=[fast])


def unreachable() -> at.Experiment:
    return at.Experiment("toy", train, SPACE, at.Target("val_accuracy", 1e6, limit=0.01))


def failing() -> at.Experiment:
    return at.Experiment("toy", raising, SPACE, TARGET)


def unknown_metric() -> at.Experiment:
    return at.Experiment("toy", train, SPACE, at.Target("val_acuracy", 0.9, limit=5))


def returns_nothing() -> at.Experiment:
    return at.Experiment("toy", silent, SPACE, TARGET)


def too_large() -> at.Experiment:
    return at.Experiment("toy", train, SPACE, TARGET, scaling=at.Scaling(num_workers=999))


def mistyped_keyword() -> at.Experiment:
    return at.Experiment("toy", train, SPACE, TARGET, scalling=at.Scaling())


def mistyped_setting() -> at.Experiment:
    return at.Experiment("toy", train, SPACE, at.Target("val_accuracy", 0.9, limit=5, mod="max"))


def negative_limit() -> at.Experiment:
    return at.Experiment("toy", train, SPACE, at.Target("val_accuracy", 0.9, limit=-5))


def empty_range() -> at.Experiment:
    return at.Experiment("toy", train, at.SearchSpace({"speed": at.Float(2, 1)}), TARGET)


def wrong_type() -> at.Experiment:
    return at.Experiment("toy", train, {"speed": 1}, TARGET)  # type: ignore[arg-type]


def wrong_baseline() -> at.Experiment:
    return at.Experiment("toy", train, SPACE, TARGET, baseline={"sped": 0.1})


def nothing() -> None:
    return None


def raises() -> at.Experiment:
    raise RuntimeError("no data today")


def leaves() -> at.Experiment:
    sys.exit(0)


def older() -> at.Experiment:
    """As `searched` of `older_studies.py`, which is kept in tests/storage/data."""
    from sims import racing

    return racing([1.0, 0.3], failure=at.FailurePolicy(checkpoint_interval=2))
