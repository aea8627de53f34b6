"""A race in which the seed is kind or unkind, on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from sims import METRIC, racing

import autotune as at
from autotune.pools.sim import Curve, Point, SimPool
from autotune.trial import Trial

SPREAD = 0.3  # standard deviation of the logarithm of a run's pace


def lucky(config: Mapping[str, Any], seed: int) -> Curve:
    """Rate r takes 10 / r seconds to the target, times its luck; a milestone each tenth of that."""
    pace = math.exp(SPREAD * Random(f"luck {seed}").gauss(0, 1))
    points = [
        Point(10 * t, round(t * pace / 10, 6), {METRIC: config["rate"] * t / 100})
        for t in range(1001)
    ]
    return Curve(points)


def study(folder: Path, trials: int = 10, *, workers: int = 3, **options: Any) -> at.StudyResult:
    """A search among rates; the target's limit is 30 seconds."""
    experiment = options.pop("experiment", None) or racing([1.0], limit=30)
    asked = {"sampler": "random", "pruner": "slower_than_best", "tracking_uri": "off", **options}
    curve = asked.pop("curve", lucky)
    return at.run(experiment, trials=trials, out=folder, pool=SimPool(curve, workers), **asked)


def facts(trial: Trial) -> tuple[Any, ...]:
    """What of a trial does not depend on when it ran."""
    told = (trial.number, trial.kind, trial.repeats, trial.config, trial.params, trial.seed)
    return (*told, trial.state, trial.reason, trial.seconds)
