"""Whether a running trial can still reach the target in time: its curve, drawn on.

A handful of curves that flatten out are fitted to what the trial has reported, the gap to the
target over seconds, and each is given weight by how well it fits. What a curve does not know is
told as noise: its residuals, an error that grows with the logarithm of the time still to go, and
what a learning rate that has yet to decay may bring. The last two are learned from the trials that
have ended, by asking what would have been forecast of them; so a study whose trials arrive late
forecasts with less confidence.

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
from functools import lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autotune.algorithms.ranking.equal_time import GapCurve
from autotune.algorithms.ranking.trial_index import Others, TrialIndex
from autotune.schedules import Schedule, edges_of
from autotune.trial import Target, Trial

Floats = NDArray[np.float64]

LEAST = 4  # reports that a fit needs
_POWERS = np.array([-1.0, -0.5, 0.1, 0.25, 0.5, 1.0, 2.0])  # below 0: no end of it in sight yet
_JITTER = 0.01  # of a span: no evaluation is more exact
_FARTHEST = 2.0  # spans: where a trial that started wildly is, as far as its curve is concerned
_WORST = 1.0  # spans: no single trial teaches more, or one could keep all others from being stopped
_INDEPENDENT = 10.0  # neighbouring reports tell the same; they count as no more than so many
_MOST_DECAY = math.log(1000)  # a learning rate below a thousandth teaches nothing more
_LITTLE_DECAY = 0.1  # less is none
_TELLING_DECAY = 1.0  # less does not show what decay brings, which comes late
_RISE = 0.1  # spans for each e-fold of decay, before any trial has shown it
_RISE_WEIGHT = 2.0  # trials that this belief counts as
_LOOKED_BACK = (0.25, 0.5)  # shares of an ended trial's time at which it is forecast
_GRID = np.linspace(0.0, 1.0, 201)
_HALF_NORMAL = np.array(  # its quantiles at 1/16, 3/16, ..., 15/16
    [0.0784, 0.2372, 0.4023, 0.5791, 0.7764, 1.0100, 1.3180, 1.8627]
)
_erf = np.vectorize(math.erf, otypes=[float])


@dataclass(frozen=True)
class Known:
    """What the other trials of a study say about forecasts.

    Args:
        span: the gap to the target that trials begin with, in the metric's unit.
        noise: the error of a forecast, in spans, when time is to grow by a factor of e.
        rise: what decay may add, in spans, for each e-fold by which the learning rate falls.
    """

    span: float
    noise: float
    rise: float = _RISE


@dataclass(frozen=True)
class Lesson:
    """How far an ended trial came beyond its forecasts: pairs of decay and errors to learn from."""

    noises: tuple[float, ...] = ()
    rises: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Fits:
    """Each curve's gap at the time asked for and residual deviation, in spans; weights sum to 1."""

    gaps: Floats
    deviations: Floats
    weights: Floats


def chance(trial: Trial, cap: float, target: Target, known: Known, least: int = LEAST) -> float:
    """The probability that a running trial reaches the target by `cap` seconds.

    It is 1 where nothing can be said: before `least` reports with a finite metric, and while the
    learning rate is still warming up. A trial tells its place in the schedule by a metric
    `progress` (0 to 1, of its horizon), with a schedule as `config["lr"]`; without either nothing
    is known of warm-up and decay, and nothing is added for them.

    >>> from autotune.trial import Report
    >>> def run(rate):
    ...     told = [Report(i, i, {"acc": 0.9 - 0.8 * i**-rate}) for i in range(1, 21)]
    ...     return Trial(0, {}, reports=tuple(told), seconds=20)
    >>> target = Target("acc", 0.8, limit=100)
    >>> known = Known(span=0.7, noise=0.1)
    >>> round(chance(run(0.8), 100, target, known)), round(chance(run(0.1), 100, target, known))
    (1, 0)
    """
    seconds, gaps = _seen(trial, target)
    if len(gaps) < least or not cap > seconds[-1]:
        return 1.0 if len(gaps) < least or gaps[-1] <= 0 else 0.0
    fits = _fitted(seconds, np.minimum(gaps / known.span, _FARTHEST), cap)
    ahead = math.log(cap / seconds[-1]) * known.noise
    spread = np.sqrt(fits.deviations**2 + ahead**2)
    gained = _HALF_NORMAL * known.rise * _decay(trial, trial.reports[-1].seconds, cap)
    z = (gained[:, None] - fits.gaps) / spread
    return float(np.mean(0.5 * (1 + _erf(z / math.sqrt(2))) @ fits.weights))


def span_of(trials: Sequence[Trial], target: Target) -> float:
    """The median gap to the target at a first report, in the metric's unit; 0 if there is none."""
    return median([gap for t in trials if (gap := _first_gap(t, target))] or [0.0])


def _first_gap(trial: Trial, target: Target) -> float:
    """The gap to the target at a trial's first report; 0 if there is none."""
    first = trial.reports[0].metrics.get(target.metric) if trial.reports else None
    gap = target.shortfall(first) if first is not None else 0.0
    return float(gap) if 0 < gap < math.inf else 0.0


def known_from(lessons: Sequence[Lesson], span: float, floor: float) -> Known:
    """What lessons, in the metric's unit, make of the noise (at least `floor`) and the rise."""
    learned = _Learned()
    learned.add(lessons)
    return learned.known(span, floor)


class _Learned:
    """All lessons together, in order of size: nothing depends on which trial ended first."""

    def __init__(self) -> None:
        self._noises, self._rises = np.empty(0), np.empty(0)

    def add(self, lessons: Sequence[Lesson]) -> None:
        self._noises = _sorted_in(self._noises, [n for le in lessons for n in le.noises if n > 0])
        self._rises = _sorted_in(self._rises, [rise for le in lessons for rise in le.rises])

    def known(self, span: float, floor: float) -> Known:
        gained = np.minimum(self._rises / span, _WORST)
        squares = _RISE_WEIGHT * _RISE**2 + float((gained**2).sum())
        rise = math.sqrt(squares / (_RISE_WEIGHT + len(gained)))
        missed = np.minimum(self._noises / span, _WORST)
        if not len(missed):
            return Known(span, floor, rise)
        # Half of a fair forecast's errors are positive; their mean square is that of all of them.
        return Known(span, max(floor, math.sqrt(float((missed**2).mean()))), rise)


class Lessons:
    """Cache of the lessons of ended trials, which changes no result.

    Of a study's own trials (those of a `TrialIndex`) it reads only those added since the last call.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[Trial, Target, Lesson]] = {}
        self._read: tuple[list[Trial], list[Trial], Target | None] = [], [], None
        self._begin()

    def _begin(self) -> None:
        self._begun = self._over = 0  # how much of the index's lists has been read
        self._gaps: list[float] = []
        self._learned = _Learned()

    def known(self, trials: Sequence[Trial], target: Target, floor: float) -> Known | None:
        """What `trials` say about a forecast; None before any has shown a gap.

        Of a study's `Others` that is what all of its trials say.
        """
        if isinstance(trials, Others):
            return self._of_study(trials.trial_index, target, floor)
        span = span_of(trials, target)
        if not span > 0:
            return None
        return known_from([self._of(t, target) for t in trials if t.ended], span, floor)

    def _of_study(self, trial_index: TrialIndex, target: Target, floor: float) -> Known | None:
        begun, over = trial_index.begun, trial_index.over
        read = self._read
        if read[0] is not begun or read[1] is not over or read[2] is not target:
            self._begin()
        self._read = begun, over, target
        for trial in begun[self._begun :]:
            if gap := _first_gap(trial, target):
                insort(self._gaps, gap)
        self._learned.add([self._of(trial, target) for trial in over[self._over :]])
        self._begun, self._over = len(begun), len(over)
        count = len(self._gaps)
        if not count:
            return None
        span = (self._gaps[(count - 1) // 2] + self._gaps[count // 2]) / 2
        return self._learned.known(span, floor)

    def _of(self, trial: Trial, target: Target) -> Lesson:
        held = self._found.get(trial.number)
        if held is None or held[0] is not trial or held[1] is not target:
            held = trial, target, lesson(trial, target)
            self._found[trial.number] = held
        return held[2]


def _sorted_in(values: Floats, new: Sequence[float]) -> Floats:
    new = sorted(new)
    return np.insert(values, np.searchsorted(values, new), new) if new else values


def lesson(trial: Trial, target: Target) -> Lesson:
    """What an ended trial teaches: how much nearer to the target it came than it had promised.

    It is forecast from a quarter and from a half of its time. What it gained beyond that is put
    down to the decay of its learning rate where there was any, and to noise otherwise.
    """
    seconds, gaps = _seen(trial, target)
    noises, rises = [], []
    if not len(gaps) or gaps[0] <= 0:
        return Lesson()
    for share in _LOOKED_BACK:
        count = int(np.searchsorted(seconds, share * seconds[-1], side="right"))
        if count < LEAST:
            continue
        fits = _fitted(seconds[:count], gaps[:count] / gaps[0], seconds[-1])
        gained = float(fits.gaps @ fits.weights * gaps[0] - gaps[-1])
        decay = _decay(trial, seconds[count - 1], seconds[-1])
        if decay >= _TELLING_DECAY:
            rises.append(max(gained, 0.0) / decay)
        elif decay < _LITTLE_DECAY:
            noises.append(gained / math.log(seconds[-1] / seconds[count - 1]))
    return Lesson(tuple(noises), tuple(rises))


def _seen(trial: Trial, target: Target) -> tuple[Floats, Floats]:
    """Seconds and gaps, best so far, since the warm-up ended; empty while it lasts.

    A report at 0 seconds is not of training, and one without a finite metric shows no gap.
    """
    curve = GapCurve(trial, target)
    seconds, gaps = np.array(curve.seconds, float), np.array(curve.gaps, float)
    begun = _warm_until(trial)
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


# --- the learning rate's schedule -----------------------------------------------------------------


@lru_cache(maxsize=1024)
def _drawn(schedule: Schedule) -> tuple[Floats, Floats]:
    """A schedule's values at progresses from 0 to 1, on both sides of every edge."""
    edges = np.array(edges_of(schedule))
    places = np.unique(np.concatenate([_GRID, edges, np.nextafter(edges, 0.0)]))
    return places, schedule(places)


def _peak(schedule: Schedule) -> float:
    """The progress at which the greatest value is first reached."""
    places, values = _drawn(schedule)
    return float(places[int(np.argmax(values >= (1 - 1e-6) * values.max()))])


def _warm_until(trial: Trial) -> float:
    """Seconds of the first report after the learning rate's peak; infinite before it."""
    schedule = trial.config.get("lr")
    told = bool(trial.reports) and "progress" in trial.reports[-1].metrics
    if not told or not isinstance(schedule, Schedule):
        return 0.0
    peak = _peak(schedule)
    passed = (r.seconds for r in trial.reports if r.metrics.get("progress", 0.0) >= peak)
    return next(passed, math.inf)


def _decay(trial: Trial, seconds: float, cap: float) -> float:
    """E-folds by which the learning rate falls from a report at `seconds` until `cap` seconds."""
    schedule = trial.config.get("lr")
    if not isinstance(schedule, Schedule):
        return 0.0
    reports = (r for r in trial.reports if r.seconds == seconds and "progress" in r.metrics)
    now = next((r.metrics["progress"] for r in reports), math.nan)
    if not now >= 0:
        return 0.0
    now = min(now, 1.0)  # a trial that outlives its horizon trains on with the last value
    places, values = _drawn(schedule)
    until = min(now * cap / seconds, 1.0) if now > 0 and seconds > 0 else 1.0
    rate = float(schedule(now))
    lowest = float(values[(places >= now) & (places <= until)].min(initial=schedule(until)))
    if not rate > lowest:
        return 0.0
    return math.log(rate / lowest) if lowest > rate * math.exp(-_MOST_DECAY) else _MOST_DECAY
