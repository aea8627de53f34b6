"""A simulated training whose best learning rate falls with time, and that may go on from a point.

What happens next depends on the configuration and on where the training is, on nothing else: so a
trial that goes on from its own checkpoint follows its own curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sims import METRIC, toy_train

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.space.search_space import Float, Int, SearchSpace
from autotune.trial import Checkpoint, Clock, Report, Target, Trial

SPACE = SearchSpace({"lr": Float(1e-3, 1.0, log=True), "width": Int(1, 4)})
LIMIT = 40.0


def best_lr(seconds: float) -> float:
    """From 0.5, down to 0.005 at the limit."""
    return float(0.5 * 0.01 ** (seconds / LIMIT))


def trained(config: Mapping[str, Any], seed: int, point: SimPoint) -> SimCurve:
    """A milestone every 0.5 to 0.53 seconds, after the seed."""
    points, gap = [point], 1.0 - point.metrics[METRIC]
    step, seconds = point.step, point.seconds
    while seconds < 2 * LIMIT:
        wrong = math.log(config["lr"] / best_lr(seconds))
        gap *= math.exp(-0.05 * math.exp(-(wrong**2)))
        step, seconds = step + 100, round(seconds + 0.5 + seed % 4 / 100, 6)
        points.append(SimPoint(step, seconds, {METRIC: 1.0 - gap}))
    return SimCurve(points)


def from_scratch(config: Mapping[str, Any], seed: int) -> SimCurve:
    return trained(config, seed, SimPoint(0, 0.0, {METRIC: 0.0}))


def experiment(**options: Any) -> at.Experiment:
    target = options.pop("target", None) or at.Target(METRIC, 0.9, limit=LIMIT)
    return at.Experiment("population", toy_train, SPACE, target, **options)


def study(folder: Path, trials: int, *, workers: int = 6, **options: Any) -> at.StudyResult:
    pool = SimPool(from_scratch, workers, go_on=trained)
    asked = {"sampler": "random", "controller": "pbt", "tracking_uri": "off", **options}
    made = asked.pop("experiment", None) or experiment()
    return at.run(made, trials=trials, out=folder, pool=pool, **asked)


# --- trials by hand -------------------------------------------------------------------------------

TARGET = Target(METRIC, 1.0, limit=10)


def curve(values: Iterable[float], every: float = 0.5) -> tuple[Report, ...]:
    return tuple(
        Report(i * 10, i * every, {METRIC: v}, Clock(train=i * every))
        for i, v in enumerate(values, 1)
    )


def running(number: int, values: Iterable[float], saved: float = 1.0, **more: Any) -> Trial:
    """A trial with a report every half second, and a checkpoint at `saved` seconds."""
    reports = curve(values)
    kept = Checkpoint(round(20 * saved), f"sim:{number}", Clock(train=saved)) if saved else None
    point = {"lr": 0.01 * (number + 1), "width": 2}
    made = Trial(number, dict(point), point, reports=reports, checkpoint=kept, attempts=1)
    return replace(made, seconds=reports[-1].seconds if reports else 0.0, **more)


FOUR = [running(n, [0.1 * n, 0.1 * n + 0.05]) for n in range(4)]
