"""Forecast of whether a running trial reaches the target in time, by extrapolating its curve.

Several saturating curves are fitted to the trial's reports, the gap to the target over seconds, and
weighted by their fit. The forecast has three sources of uncertainty: the residuals of the fit, an
error that grows with the logarithm of the remaining time, and the gain from a learning rate that is
still to decay. The last two are estimated from ended trials, by forecasting them in retrospect; so
a study whose trials gain late forecasts with less confidence.

Gaps are measured in **spans**: a span is the gap that the study's trials begin with, the median of
their first reports. So fractions, per cent and losses are treated alike.

Ensembles of parametric curves: Domhan et al. 2015 (IJCAI); power laws: Kadra et al. 2023 (arXiv
2302.00441). Accuracy that comes with the decay, and not before: Smith and Topin 2017 (arXiv
1708.07120), and every step schedule.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autotune.algorithms.pruners.learning_rate import decay_between, peak_seconds
from autotune.algorithms.ranking.equal_time import GapCurve
from autotune.algorithms.ranking.trial_index import Others, TrialIndex
from autotune.trial import Target, Trial

Floats = NDArray[np.float64]

LEAST = 4  # the least reports for a fit
_POWERS = np.array([-1.0, -0.5, 0.1, 0.25, 0.5, 1.0, 2.0])  # below 0: no asymptote yet
_JITTER = 0.01  # of a span: the least error of an evaluation
_FARTHEST = 2.0  # spans: larger gaps at the start of a trial are clipped
_WORST = 1.0  # spans: the most that one trial contributes, or one could keep all others running
_INDEPENDENT = 10.0  # neighbouring reports are correlated; they count as at most so many
_LITTLE_DECAY = 0.1  # less counts as none
_ENOUGH_DECAY = 1.0  # less does not show the gain from decay, which comes late
_RISE = 0.1  # the prior gain in spans for each e-fold of decay
_RISE_WEIGHT = 2.0  # the weight of the prior, in trials
_RETROSPECTS = (0.25, 0.5)  # shares of an ended trial's time at which it is forecast in retrospect
_HALF_NORMAL = np.array(  # quantiles at 1/16, 3/16, ..., 15/16
    [0.0784, 0.2372, 0.4023, 0.5791, 0.7764, 1.0100, 1.3180, 1.8627]
)
_erf = np.vectorize(math.erf, otypes=[float])


@dataclass(frozen=True)
class ForecastParameters:
    """Parameters of forecasts, estimated from the other trials of a study.

    Args:
        span: the gap to the target at the start of trials, in the metric's unit.
        noise: the error of a forecast, in spans, over a factor of e in time.
        rise: the gain from decay, in spans, for each e-fold by which the learning rate falls.
    """

    span: float
    noise: float
    rise: float = _RISE


@dataclass(frozen=True)
class Lesson:
    """The errors of retrospective forecasts of an ended trial, as noises and gains from decay."""

    noises: tuple[float, ...] = ()
    rises: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Fits:
    """Each curve's gap at the requested time, residual deviation (in spans), and weight (sum 1)."""

    gaps: Floats
    deviations: Floats
    weights: Floats


def chance(
    trial: Trial, cap: float, target: Target, parameters: ForecastParameters, least: int = LEAST
) -> float:
    """The probability that a running trial reaches the target by `cap` seconds.

    It is 1 without a basis for a forecast: before `least` reports with a finite metric, and during
    the warm-up of the learning rate. The position in the schedule is the metric `progress` (0 to 1,
    of the horizon), and the schedule is `config["lr"]`; without either, the forecast ignores
    warm-up and decay.

    >>> from autotune.trial import Report
    >>> def run(rate):
    ...     reports = [Report(i, i, {"acc": 0.9 - 0.8 * i**-rate}) for i in range(1, 21)]
    ...     return Trial(0, {}, reports=tuple(reports), seconds=20)
    >>> target = Target("acc", 0.8, limit=100)
    >>> known = ForecastParameters(span=0.7, noise=0.1)
    >>> round(chance(run(0.8), 100, target, known)), round(chance(run(0.1), 100, target, known))
    (1, 0)
    """
    seconds, gaps = _gaps_of(trial, target)
    if len(gaps) < least or not cap > seconds[-1]:
        return 1.0 if len(gaps) < least or gaps[-1] <= 0 else 0.0
    fits = _fitted(seconds, np.minimum(gaps / parameters.span, _FARTHEST), cap)
    ahead = math.log(cap / seconds[-1]) * parameters.noise
    spread = np.sqrt(fits.deviations**2 + ahead**2)
    gained = _HALF_NORMAL * parameters.rise * decay_between(trial, trial.reports[-1].seconds, cap)
    z = (gained[:, None] - fits.gaps) / spread
    return float(np.mean(0.5 * (1 + _erf(z / math.sqrt(2))) @ fits.weights))


def span_of(trials: Sequence[Trial], target: Target) -> float:
    """The median gap to the target at a first report, in the metric's unit; 0 if there is none."""
    return median([gap for t in trials if (gap := _first_gap(t, target))] or [0.0])


def _first_gap(trial: Trial, target: Target) -> float:
    """The gap to the target at a trial's first report of the metric; 0 if there is none.

    The report that ends the set-up has no metrics.
    """
    named = (r.metrics[target.metric] for r in trial.reports if target.metric in r.metrics)
    first = next(named, None)
    gap = target.shortfall(first) if first is not None else 0.0
    return float(gap) if 0 < gap < math.inf else 0.0


def parameters_from(lessons: Sequence[Lesson], span: float, floor: float) -> ForecastParameters:
    """The noise (at least `floor`) and the rise from lessons, which are in the metric's unit."""
    pool = _LessonPool()
    pool.add(lessons)
    return pool.parameters(span, floor)


class _LessonPool:
    """All lessons together, sorted by size, so that the order of trials does not matter."""

    def __init__(self) -> None:
        self._noises, self._rises = np.empty(0), np.empty(0)

    def add(self, lessons: Sequence[Lesson]) -> None:
        self._noises = _sorted_in(self._noises, [n for le in lessons for n in le.noises if n > 0])
        self._rises = _sorted_in(self._rises, [rise for le in lessons for rise in le.rises])

    def parameters(self, span: float, floor: float) -> ForecastParameters:
        gained = np.minimum(self._rises / span, _WORST)
        squares = _RISE_WEIGHT * _RISE**2 + float((gained**2).sum())
        rise = math.sqrt(squares / (_RISE_WEIGHT + len(gained)))
        missed = np.minimum(self._noises / span, _WORST)
        if not len(missed):
            return ForecastParameters(span, floor, rise)
        # Half of a fair forecast's errors are positive; their mean square is that of all of them.
        return ForecastParameters(span, max(floor, math.sqrt(float((missed**2).mean()))), rise)


class Lessons:
    """Cache of the lessons of ended trials, which changes no result.

    Of a study's own trials (those of a `TrialIndex`) it reads only those added since the last call.
    """

    def __init__(self) -> None:
        self._lessons: dict[int, tuple[Trial, Target, Lesson]] = {}
        self._read: tuple[list[Trial], list[Trial], Target | None] = [], [], None
        self._begin()

    def _begin(self) -> None:
        self._begun_read = self._over_read = 0  # how much of the index's lists has been read
        self._gaps: list[float] = []
        self._pool = _LessonPool()

    def parameters(
        self, trials: Sequence[Trial], target: Target, floor: float
    ) -> ForecastParameters | None:
        """The parameters of forecasts from `trials`; None before any has a gap.

        For a study's `Others` they are those from all of its trials.
        """
        if isinstance(trials, Others):
            return self._of_study(trials.trial_index, target, floor)
        span = span_of(trials, target)
        if not span > 0:
            return None
        return parameters_from([self._of(t, target) for t in trials if t.ended], span, floor)

    def _of_study(
        self, trial_index: TrialIndex, target: Target, floor: float
    ) -> ForecastParameters | None:
        begun, over = trial_index.begun, trial_index.over
        read = self._read
        if read[0] is not begun or read[1] is not over or read[2] is not target:
            self._begin()
        self._read = begun, over, target
        for trial in begun[self._begun_read :]:
            if gap := _first_gap(trial, target):
                insort(self._gaps, gap)
        self._pool.add([self._of(trial, target) for trial in over[self._over_read :]])
        self._begun_read, self._over_read = len(begun), len(over)
        count = len(self._gaps)
        if not count:
            return None
        span = (self._gaps[(count - 1) // 2] + self._gaps[count // 2]) / 2
        return self._pool.parameters(span, floor)

    def _of(self, trial: Trial, target: Target) -> Lesson:
        cached = self._lessons.get(trial.number)
        if cached is None or cached[0] is not trial or cached[1] is not target:
            cached = trial, target, lesson(trial, target)
            self._lessons[trial.number] = cached
        return cached[2]


def _sorted_in(values: Floats, new: Sequence[float]) -> Floats:
    new = sorted(new)
    return np.insert(values, np.searchsorted(values, new), new) if new else values


def lesson(trial: Trial, target: Target) -> Lesson:
    """The lesson of an ended trial: how much it gained beyond its retrospective forecasts.

    Forecasts are from a quarter and from a half of its time. A gain beyond them is attributed to
    the decay of its learning rate if there was any, and to noise otherwise.
    """
    seconds, gaps = _gaps_of(trial, target)
    noises, rises = [], []
    if not len(gaps) or gaps[0] <= 0:
        return Lesson()
    for share in _RETROSPECTS:
        count = int(np.searchsorted(seconds, share * seconds[-1], side="right"))
        if count < LEAST:
            continue
        fits = _fitted(seconds[:count], gaps[:count] / gaps[0], seconds[-1])
        gained = float(fits.gaps @ fits.weights * gaps[0] - gaps[-1])
        decay = decay_between(trial, seconds[count - 1], seconds[-1])
        if decay >= _ENOUGH_DECAY:
            rises.append(max(gained, 0.0) / decay)
        elif decay < _LITTLE_DECAY:
            noises.append(gained / math.log(seconds[-1] / seconds[count - 1]))
    return Lesson(tuple(noises), tuple(rises))


def _gaps_of(trial: Trial, target: Target) -> tuple[Floats, Floats]:
    """Seconds and gaps, best so far, after the warm-up; empty during the warm-up.

    Reports at 0 seconds, and those without a finite metric, are left out.
    """
    curve = GapCurve(trial, target)
    seconds, gaps = np.array(curve.seconds, float), np.array(curve.gaps, float)
    begun = peak_seconds(trial)
    kept = (seconds > 0) & (seconds >= begun) & np.isfinite(gaps)
    return seconds[kept], gaps[kept]


def _fitted(seconds: Floats, gaps: Floats, cap: float) -> _Fits:
    """Fit curves `a + b t^-c`, b >= 0, in spans, by least squares that weight late reports more."""
    last = seconds[-1]
    times, signs = seconds / last, np.sign(_POWERS)[:, None]
    shapes = signs * times ** -_POWERS[:, None]
    weights = times / times.sum()
    centre, level = shapes @ weights, float(gaps @ weights)
    apart, off = shapes - centre[:, None], gaps - level
    variances = np.maximum((apart**2) @ weights, 1e-18)
    slopes = np.maximum((apart * off) @ weights / variances, 0.0)
    errors = ((off - slopes[:, None] * apart) ** 2) @ weights + _JITTER**2
    count = min(1.0 / float(weights @ weights), _INDEPENDENT)
    trust = -0.5 * count * np.log(errors)
    trust = np.exp(trust - trust.max())
    ahead = signs[:, 0] * (cap / last) ** -_POWERS
    found = np.minimum(level + slopes * (ahead - centre), gaps[-1])
    return _Fits(found, np.sqrt(errors), trust / trust.sum())
