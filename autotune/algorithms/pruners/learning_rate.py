"""The peak and the decay of a trial's learning-rate schedule, in seconds of the trial."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autotune.schedules import Schedule, edges_of
from autotune.trial import Trial

Floats = NDArray[np.float64]

_MOST_DECAY = math.log(1000)  # a learning rate below a thousandth gains nothing more
_GRID = np.linspace(0.0, 1.0, 201)


@lru_cache(maxsize=1024)
def _sampled(schedule: Schedule) -> tuple[Floats, Floats]:
    """A schedule's values at progresses from 0 to 1, on both sides of every edge."""
    edges = np.array(edges_of(schedule))
    places = np.unique(np.concatenate([_GRID, edges, np.nextafter(edges, 0.0)]))
    return places, schedule(places)


def _peak(schedule: Schedule) -> float:
    """The progress at which the greatest value is first reached."""
    places, values = _sampled(schedule)
    return float(places[int(np.argmax(values >= (1 - 1e-6) * values.max()))])


def peak_seconds(trial: Trial) -> float:
    """Seconds of the first report after the learning rate's peak; infinite before it."""
    schedule = trial.config.get("lr")
    has_progress = bool(trial.reports) and "progress" in trial.reports[-1].metrics
    if not has_progress or not isinstance(schedule, Schedule):
        return 0.0
    peak = _peak(schedule)
    passed = (r.seconds for r in trial.reports if r.metrics.get("progress", 0.0) >= peak)
    return next(passed, math.inf)


def decay_between(trial: Trial, seconds: float, cap: float) -> float:
    """E-folds by which the learning rate falls from a report at `seconds` until `cap` seconds."""
    schedule = trial.config.get("lr")
    if not isinstance(schedule, Schedule):
        return 0.0
    reports = (r for r in trial.reports if r.seconds == seconds and "progress" in r.metrics)
    now = next((r.metrics["progress"] for r in reports), math.nan)
    if not now >= 0:
        return 0.0
    now = min(now, 1.0)  # beyond the horizon the last value holds
    places, values = _sampled(schedule)
    until = min(now * cap / seconds, 1.0) if now > 0 and seconds > 0 else 1.0
    rate = float(schedule(now))
    lowest = float(values[(places >= now) & (places <= until)].min(initial=schedule(until)))
    if not rate > lowest:
        return 0.0
    return math.log(rate / lowest) if lowest > rate * math.exp(-_MOST_DECAY) else _MOST_DECAY
