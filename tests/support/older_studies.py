"""The studies whose folders lie in `tests/storage/data`, as the version of then ran them.

Each folder holds a journal that breaks off as if its driver had been killed, `experiment.json`,
and `resumed.json`: the trials after that version itself had resumed the study (of `searched` and
`raced`, after a later one had, as samplers and the rule of races have changed since).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import populations
from sims import METRIC, race, racing, simulate

import autotune as at
from autotune.backends.simulator import SimCurve


def searched(folder: Path, sampler: str = "policy:elite") -> at.StudyResult:
    """Killed while three trials ran, two of which have a checkpoint.

    It began with the sampler `policy:ppo`, which is no more; its manifest names another one.
    """
    experiment = racing([1.0, 0.3], failure=at.FailurePolicy(checkpoint_interval=2))
    return simulate(experiment, folder, 14, sampler=sampler, seed=5, workers=3)


def forked(folder: Path) -> at.StudyResult:
    """Killed after two forks, one of which still ran."""
    target = at.Target(METRIC, 0.35, limit=populations.LIMIT)
    asked: dict[str, Any] = {"sampler": "qmc", "controller": "pbt(interval=2.0)", "seed": 3}
    asked |= {"experiment": populations.experiment(target=target), "repeats": 1, "top": 1}
    return populations.study(folder, 12, workers=4, **asked)


def noisy_curve(config: Mapping[str, Any], seed: int) -> SimCurve:
    """The seed makes a run faster or slower by up to a third."""
    return race({"rate": config["rate"] * (1 + math.sin(seed) / 3)}, seed)


def raced(folder: Path) -> at.StudyResult:
    """Killed during the third and fourth race; more races and suggestions follow."""
    asked: dict[str, Any] = {"sampler": "convergence", "racing": 0.4, "repeats": 2, "top": 2}
    return simulate(racing([1.0, 2.0]), folder, 12, noisy_curve, seed=2, workers=2, **asked)


STUDIES: Mapping[str, Callable[[Path], at.StudyResult]] = {
    "searched": searched,
    "forked": forked,
    "raced": raced,
    "confirmed": raced,  # killed during the third confirmation
}
