"""A race whose times depend on the seed, on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from sims import METRIC, racing

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.storage.journal import JOURNAL
from autotune.study.manifest import resolved
from autotune.study.options import StudyOptions
from autotune.trial import State, Trial

SAMPLER = "convergence"  # a function of the trials, so that a resumed study proposes the same
MISSED = {"state": State.CENSORED, "reason": "limit"}
SPREAD = 0.3  # standard deviation of the logarithm of a run's pace


def noisy_curve(config: Mapping[str, Any], seed: int) -> SimCurve:
    """Rate r takes 10 / r s, times a random factor; a milestone every 0.1 s times the factor."""
    pace = math.exp(SPREAD * Random(f"luck {seed}").gauss(0, 1))
    points = [
        SimPoint(10 * t, round(t * pace / 10, 6), {METRIC: config["rate"] * t / 100})
        for t in range(1001)
    ]
    return SimCurve(points)


def study(folder: Path, trials: int = 10, *, workers: int = 3, **options: Any) -> at.StudyResult:
    """A search among rates; the target's limit is 30 seconds."""
    experiment = options.pop("experiment", None) or racing([1.0], limit=30)
    asked = {"sampler": "random", "pruner": "slower_than_best", "tracking_uri": "off"}
    asked |= {"racing": 0, **options}
    curve = asked.pop("curve", noisy_curve)
    return at.run(experiment, trials=trials, out=folder, pool=SimPool(curve, workers), **asked)


def put(folder: Path, data: bytes) -> None:
    experiment = racing([1.0], limit=30)
    (folder / JOURNAL).write_bytes(data)
    resolved(experiment, StudyOptions(tracking_uri="off")).write(folder)


def reached(number: int, seconds: float, **more: Any) -> Trial:
    """A searched trial by hand, or a repeat of one."""
    made = Trial(number, {"rate": float(more.pop("rate", number))}, {"rate": 1.0}, attempts=1)
    return replace(made, seconds=seconds, **{"state": State.REACHED, "reason": "target", **more})


def outcome_of(trial: Trial) -> tuple[Any, ...]:
    """What of a trial does not depend on when it ran."""
    identity = (trial.number, trial.kind, trial.repeats, trial.config, trial.params, trial.seed)
    return (*identity, trial.state, trial.reason, trial.seconds)
