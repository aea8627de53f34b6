"""Which earlier studies a new one is like, by what its trials have shown so far.

Each model of a known task, at each of a few time scales, is a hypothesis about the new study; one
more says that it is like none of them. Their probabilities follow from the trials (Bayes' rule): a
trial that reached the target counts by its time, one that was stopped by how long it went without,
and every pair of trials by which was better at the last time at which both were seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.algorithms.experience.known_task import MARKS, Array
from autotune.algorithms.experience.model import Predictions
from autotune.algorithms.ranking.equal_time import GapCurves
from autotune.algorithms.ranking.trial_index import common_prefix_length
from autotune.trial import FINISHED, MISSED_REASONS, State, Target, Trial

_NOISE = 0.5  # standard deviation of a log time about its prediction
_PLACE_NOISE = 1.0  # of the difference of two trials' normal scores
_FLOOR = 0.05  # probability of anything under each hypothesis, so that none is ruled out by a trial
_SCALES = (-2.0, -1.0, 0.0, 1.0, 2.0)  # steps of a time scale: see `_STEP`
_STEP = 2  # marks of a curve that a step is: a factor of 1.88 in time
_SCALE_SPREAD = 1.0  # steps: standard deviation of the time scale
_GENEROUS = 5.0  # times as long as the longest trial may be the limit that shares refer to
_NONE = 0.2  # probability that the study is like none of the known ones
_OTHERS_MISS = 0.85  # under that hypothesis, the share of trials that never reach the target
_OTHERS_LOG, _OTHERS_SPREAD = -0.7, 0.8  # and the log times of the others
MOST = 40  # trials that are looked at


@dataclass(frozen=True, eq=False)
class Posterior:
    """The probabilities of the hypotheses.

    Args:
        weights: of each model at each time scale: (models, scales); with `none` their sum is 1.
        none: of being like none of them.
    """

    weights: Array
    none: float

    def of_tasks(self, owner: Sequence[int], count: int) -> Array:
        """The probability of each of `count` tasks, from the `owner` of each model."""
        return np.asarray(np.bincount(owner, self.weights.sum(axis=1), count), dtype=float)


def shifts() -> Array:
    """Log factors of the time scales."""
    return np.array(_SCALES) * _STEP * math.log(MARKS[1] / MARKS[0])


class Evidence:
    """What the trials of a study have said so far: a cache, which changes no result.

    Attributes:
        curves: of the trials.
    """

    def __init__(self) -> None:
        self.curves = GapCurves()
        self._limit = math.nan
        self._trials: list[Trial] = []
        self._after: list[tuple[Array, float]] = []

    def of(self, trials: Sequence[Trial], limit: float) -> list[tuple[Array, float]]:
        """The log probabilities after each of the first trials, as far as they are known.

        What other trials have said, or the same ones with another limit, is forgotten.
        """
        same = common_prefix_length(self._trials, trials) if limit == self._limit else 0
        self._limit, self._trials, self._after = limit, self._trials[:same], self._after[:same]
        return self._after[:]

    def add(self, trial: Trial, logs: Array, none: float) -> None:
        """Keep the log probabilities after one more trial."""
        self._trials.append(trial)
        self._after.append((logs, none))


def posterior(
    trials: Sequence[Trial],
    predicted: Predictions,
    target: Target,
    weights: Array,
    evidence: Evidence,
) -> Posterior:
    """The probabilities after trials that have ended.

    Args:
        trials: the ended trials with a result, in the order in which they ended.
        predicted: of their points, at least of the first `MOST`.
        weights: of the models before any trial, up to a factor; (models,).
        evidence: a cache, of these models and this target.
    """
    limit = limit_of(trials, target)
    known = evidence.of(trials[:MOST], limit)
    logs, none = known[-1] if known else prior(weights)
    for i, trial in enumerate(trials[len(known) : MOST], start=len(known)):
        if target.timed:
            log = math.log(max(trial.seconds / limit, 1e-6))
            log = max(log, 0.0) if trial.reason in MISSED_REASONS else log
            own, other = of_time(log, trial.state is State.REACHED, predicted.of([i]))
            logs, none = logs + own, none + other
        pairs = [(j, *compared(trials[j], trial, target, evidence.curves)) for j in range(i)]
        pairs = [pair for pair in pairs if pair[2] is not None]
        if pairs:
            earlier = predicted.of([j for j, _, _ in pairs])
            shares = np.array([common for _, common, _ in pairs]) / limit
            leads = np.array([leads for _, _, leads in pairs], dtype=bool)
            own, other = of_pairs(shares, leads, predicted.of([i]), earlier)
            logs, none = logs + own, none + other
        evidence.add(trial, logs, none)
    return normalised(logs, none)


def prior(weights: Array) -> tuple[Array, float]:
    """Log probabilities before any trial: of each model and time scale, and of none."""
    steps = np.array(_SCALES)
    each = np.exp(-0.5 * (steps / _SCALE_SPREAD) ** 2)[None] * weights[:, None]
    return np.log((1 - _NONE) * each / max(float(each.sum()), 1e-300)), math.log(_NONE)


def normalised(logs: Array, none: float) -> Posterior:
    """The posterior of log probabilities up to a constant: of each model and scale, and of none."""
    most = max(float(logs.max(initial=-math.inf)), none)
    weights, other = np.exp(logs - most), math.exp(none - most)
    total = float(weights.sum()) + other
    return Posterior(weights / total, other / total)


def limit_of(trials: Sequence[Trial], target: Target) -> float:
    """What shares of time refer to: the limit, unless trials are far from it.

    Where trials come to an end of their own before it, that is the longest trial; where they are
    over in less than a fifth of it, five times the longest.
    """
    longest = max((t.seconds for t in trials), default=0.0)
    if longest <= 0:
        return target.horizon if math.isfinite(target.horizon) else 1.0
    by_itself = any(t.reason == FINISHED or t.state is State.COMPLETED for t in trials)
    return min(target.horizon, longest if by_itself else _GENEROUS * longest)


def of_time(log: float, reached: bool, predicted: Predictions) -> tuple[Array, float]:
    """Log likelihood of a trial's time, or of not having reached the target until it was stopped.

    For each model and time scale, and for the hypothesis of none.

    Args:
        log: of the time, as a share of the limit.
        reached: whether the trial reached the target then.
        predicted: of the trial's point.
    """
    deviation = np.sqrt(_NOISE**2 + predicted.deviations**2)
    score = (predicted.logs + shifts()[None] - log) / deviation
    others = (log - _OTHERS_LOG) / _OTHERS_SPREAD
    if reached:
        likely = _density(score) / deviation
        other = (1 - _OTHERS_MISS) * float(_density(np.array(others))) / _OTHERS_SPREAD
    else:
        likely = _below(score)
        other = 1 - (1 - _OTHERS_MISS) * float(_below(np.array(others)))
    return np.log((1 - _FLOOR) * likely + _FLOOR), math.log((1 - _FLOOR) * other + _FLOOR)


def of_pairs(
    shares: Array, leads: NDArray[np.bool_], one: Predictions, others: Predictions
) -> tuple[Array, float]:
    """Log likelihood of which of two was better when both were last seen, for pairs of one trial.

    For each model and time scale, and for the hypothesis of none. Pairs of one trial are far from
    independent: they count as the root of their number.

    Args:
        shares: of the limit at which both of a pair were last seen, (pairs,).
        leads: whether the other of a pair was better than the trial, (pairs,).
        one: predicted of the trial's point.
        others: predicted of the others' points.
    """
    chances = lead_chances(shares, one, others)
    likely = np.where(leads[:, None], chances, 1.0 - chances)
    root = math.sqrt(len(shares))
    found = np.log((1 - 2 * _FLOOR) * likely + _FLOOR).sum(axis=1) / root
    return np.asarray(found), math.log(0.5) * root


def lead_chances(shares: Array, one: Predictions, others: Predictions) -> Array:
    """The probability that each other trial is better than one: (models, others, scales).

    Args:
        shares: of the limit at which both of a pair were last seen, (others,).
        one: predicted of the trial's point.
        others: predicted of the others' points.
    """
    step = math.log(MARKS[1] / MARKS[0])
    logs = np.log(np.maximum(shares, 1e-6))[:, None] - math.log(MARKS[0]) - shifts()[None]
    marks = np.clip(np.floor(logs / step + 1e-9).astype(int), 0, len(MARKS) - 1)
    pairs = np.arange(len(shares))[:, None]
    return _below((one.scores[:, 0, :][:, marks] - others.scores[:, pairs, marks]) / _PLACE_NOISE)


def compared(
    one: Trial, other: Trial, target: Target, curves: GapCurves
) -> tuple[float, bool | None]:
    """The last time at which both were seen, and whether `one` was better; None: neither was."""
    common = min(one.seconds, other.seconds)
    gaps = [curves.of(trial, target).at(common) for trial in (one, other)]
    if gaps[0] == gaps[1] or not min(gaps) < math.inf:
        return common, None
    return common, gaps[0] < gaps[1]


def _density(score: Array) -> Array:
    return np.asarray(np.exp(-0.5 * score**2) / math.sqrt(2 * math.pi))


def _below(score: Array) -> Array:
    from scipy.special import ndtr

    return np.asarray(ndtr(score))


def expected_improvement(
    predicted: Predictions, weights: Array, best: Array, noise: float = _NOISE
) -> Array:
    """Expected improvement in log time of points, (points,).

    Args:
        predicted: of the points.
        weights: of the models and time scales, (models, scales).
        best: log time of the best so far under each model and time scale, (models, scales).

    Source: Jones, Schonlau, Welch 1998.
    """
    total = np.zeros(predicted.logs.shape[1])
    deviation = np.sqrt(noise**2 + predicted.deviations**2)
    for scale, shift in enumerate(shifts()):
        score = (best[:, scale, None] - shift - predicted.logs) / deviation
        gain = deviation * (score * _below(score) + _density(score))
        total += weights[:, scale] @ gain
    return total
