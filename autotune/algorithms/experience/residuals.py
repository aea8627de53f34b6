"""How much slower a study's trials were than a posterior over known tasks expects."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.algorithms.experience.known_task import Array
from autotune.algorithms.experience.model import Predictions
from autotune.algorithms.experience.posterior import (
    Posterior,
    compared,
    lead_chances,
    limit_of,
    shifts,
)
from autotune.algorithms.ranking.equal_time import GapCurves
from autotune.trial import DIVERGED, MISSED_REASONS, State, Target, Trial

_DIVERGED = 1.6  # log time of a trial that diverged: that of the worst of a known task's
_SURPRISE = 1.5  # log time of a trial that lost to all others, and was expected to lose to none


def residuals(
    trials: Sequence[Trial],
    predicted: Predictions,
    now: Posterior,
    target: Target,
    curves: GapCurves,
) -> Array:
    """The log time of each trial less what is expected of it, (trials,).

    A trial that did not reach the target has at least the time at which it was seen last, and one
    that diverged that of the worst. Otherwise it is as much slower as more trials than expected
    were better than it, each at the last time at which both were seen.

    Args:
        trials: the ended trials with a result, in the order in which they ended.
        predicted: of their points.
        now: the posterior after them.
    """
    limit = limit_of(trials, target)
    shares = now.weights / max(float(now.weights.sum()), 1e-300)
    found = np.zeros(len(trials))
    for i, trial in enumerate(trials):
        slower = _SURPRISE * _surprise(i, trials, predicted, target, curves, limit)
        if target.timed:
            log = math.log(max(trial.seconds / limit, 1e-6))
            log = max(log, 0.0) if trial.reason in MISSED_REASONS else log
            at_scale = predicted.logs[:, i, None] + shifts()[None]
            late = log - at_scale
            if trial.reason == DIVERGED:
                late = np.maximum(late, _DIVERGED + shifts()[None] - at_scale)
            slower = late if trial.state is State.REACHED else np.maximum(late, slower)
        found[i] = float((shares * slower).sum())
    return found


def _surprise(
    i: int,
    trials: Sequence[Trial],
    predicted: Predictions,
    target: Target,
    curves: GapCurves,
    limit: float,
) -> Array:
    """The share of other trials that were better than one, less the expected one.

    For each model and time scale, (models, scales).
    """
    others = [j for j in range(len(trials)) if j != i]
    pairs = [(j, *compared(trials[j], trials[i], target, curves)) for j in others]
    pairs = [pair for pair in pairs if pair[2] is not None]
    if not pairs:
        return np.zeros((len(predicted.logs), len(shifts())))
    times = np.array([common for _, common, _ in pairs]) / limit
    chances = lead_chances(times, predicted.of([i]), predicted.of([j for j, _, _ in pairs]))
    leads = np.array([float(bool(leads)) for _, _, leads in pairs])
    return np.asarray((leads[:, None] - chances).mean(axis=1))
