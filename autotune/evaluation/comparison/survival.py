"""Times to target of which some are only known to be longer: Kaplan-Meier and what follows from it.

Arrays of equal length: `seconds`, and `reached`, where False is right-censored: that run was seen
up to its seconds and had not arrived. Everything assumes that a run was not given up *because* it
would have been slow; what was (diverged) is to be given with the limit as its seconds. A run that
arrives at the second at which another was given up comes before it, as is usual.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from autotune.evaluation.comparison.model import Interval, Survival

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MOST_ARRANGEMENTS = 20_000  # above it the chi-square is good, and the exact test is slow


@dataclass(frozen=True, eq=False)
class Sample:
    """Runs of one candidate, sorted by seconds, those that arrived before those given up then.

    `order` says where each stood in what was given.
    """

    seconds: Floats
    reached: Bools
    order: NDArray[np.intp]

    @property
    def n(self) -> int:
        return len(self.seconds)

    @property
    def horizon(self) -> float:
        """Up to where the distribution is known: infinite if the last run arrived."""
        if not self.n or not self.reached[-1]:
            return float(self.seconds[-1]) if self.n else 0.0
        return math.inf


def sample(seconds: Sequence[float] | Floats, reached: Sequence[bool] | Bools) -> Sample:
    """The runs as sorted arrays.

    Raises:
        ValueError: lengths differ, or a time is negative or not finite.
    """
    times, arrived = np.asarray(seconds, dtype=float), np.asarray(reached, dtype=bool)
    if times.shape != arrived.shape or times.ndim != 1:
        raise ValueError(f"{times.shape} seconds and {arrived.shape} flags: lengths must be equal")
    if not np.all(np.isfinite(times)) or np.any(times < 0):
        raise ValueError("seconds must be finite and not negative")
    order = np.lexsort((~arrived, times))
    return Sample(times[order], arrived[order], order)


def shares(runs: Sample, counts: Floats | None = None) -> Floats:
    """Kaplan-Meier estimate: the share of runs that have not reached the target, per run.

    With `counts`, (resamples, n), each run counts that many times: one row per resample, which
    `scipy.stats.ecdf` cannot do. Within equal seconds only the last value is the estimate; the
    product is the same there.

    Source: Kaplan and Meier, Journal of the American Statistical Association 53 (1958).
    """
    taken = np.ones(runs.n) if counts is None else counts
    at_risk = np.flip(np.cumsum(np.flip(taken, -1), -1), -1)
    events = taken * runs.reached
    with np.errstate(invalid="ignore", divide="ignore"):
        stay = np.where(at_risk > 0, 1.0 - events / at_risk, 1.0)
    return np.asarray(np.cumprod(stay, -1))


def kaplan_meier(runs: Sample, level: float = 0.95) -> Survival:
    """Kaplan-Meier estimate with its confidence band, by Greenwood's variance of log(-log(share)).

    The band is None where the share is 1 or 0. Source: Kalbfleisch and Prentice, The Statistical
    Analysis of Failure Time Data, 2nd edition, section 1.4.
    """
    found = stats.ecdf(_censored(runs)).sf
    with warnings.catch_warnings():  # scipy warns where the band is undefined; here that is None
        warnings.simplefilter("ignore", RuntimeWarning)
        band = found.confidence_interval(level, method="log-log")
    left = [np.sum(runs.seconds >= t) - np.sum(_reached_at(runs, t)) for t in found.quantiles]
    return Survival(
        (0.0, *found.quantiles.tolist()),
        (1.0, *found.probabilities.tolist()),
        (None, *_known(band.low.probabilities)),
        (None, *_known(band.high.probabilities)),
        (runs.n, *map(int, left)),
        tuple(runs.seconds[~runs.reached].tolist()),
        level,
    )


def _censored(runs: Sample) -> stats.CensoredData:
    return stats.CensoredData(
        uncensored=runs.seconds[runs.reached], right=runs.seconds[~runs.reached]
    )


def _reached_at(runs: Sample, seconds: float) -> Bools:
    return np.asarray(runs.reached & (runs.seconds == seconds))


def _known(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else float(value) for value in values]


def median(curve: Survival) -> float | None:
    """Where the staircase falls to one half; the middle of the step if it stands at one half.

    So it is the ordinary median where nothing is censored. None: it never falls that far.

    >>> median(kaplan_meier(sample([1.0, 2.0, 4.0, 9.0], [True, True, True, False])))
    3.0
    """
    for i, share in enumerate(curve.share):
        if abs(share - 0.5) <= 1e-9:
            later = (t for t, s in zip(curve.seconds, curve.share, strict=True) if s < 0.5 - 1e-9)
            return (curve.seconds[i] + next(later, curve.seconds[i])) / 2
        if share < 0.5:
            return curve.seconds[i]
    return None


def median_interval(curve: Survival) -> Interval:
    """Seconds at which the band holds one half: Brookmeyer and Crowley, Biometrics 38 (1982).

    With fewer than about seven runs it has no upper end: so few cannot bound a median.
    """

    def falls(band: Sequence[float | None]) -> float | None:
        pairs = zip(curve.seconds, band, strict=True)
        return next((t for t, share in pairs if share is not None and share <= 0.5), None)

    low = falls(curve.low)
    if low is None:  # the band is silent where the share is 0: then the median is no later
        gone = (t for t, s in zip(curve.seconds, curve.share, strict=True) if s == 0.0)
        low = next(gone, None)
    return Interval(low, falls(curve.high), curve.level)


def restricted_mean(runs: Sample, tau: float) -> tuple[float, float | None]:
    """The mean of min(time, tau), the area under the staircase up to `tau`, and its variance.

    Variance: Greenwood's, times m/(m - 1) for m arrivals before tau (as Kaplan and Meier advise),
    so that without censoring it is that of an ordinary mean; None with fewer than two arrivals.

    Source: Irwin, Journal of Hygiene 47 (1949); Royston and Parmar, BMC Medical Research
    Methodology 13 (2013).

    >>> restricted_mean(sample([1.0, 3.0], [True, True]), 3.0)
    (2.0, 1.0)
    """
    inside = runs.seconds < tau
    edges = np.concatenate(([0.0], runs.seconds[inside], [tau]))
    share = np.concatenate(([1.0], shares(runs)[inside]))
    areas = share * np.diff(edges)
    after = np.flip(np.cumsum(np.flip(areas)))[1:]  # the area from each run's seconds up to tau
    at_risk = runs.n - np.arange(runs.n)[inside]
    arrived = int(np.sum(runs.reached & (runs.seconds <= tau)))
    if arrived < 2:
        return float(np.sum(areas)), None
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(after > 0, after**2 / (at_risk * (at_risk - 1.0)), 0.0)
    variance = float(np.sum(terms[runs.reached[inside]])) * arrived / (arrived - 1)
    return float(np.sum(areas)), variance


def mean_interval(runs: Sample, tau: float, level: float = 0.95) -> Interval | None:
    """Student's interval of the restricted mean; None with fewer than two arrivals.

    Without censoring it is the ordinary t interval of a mean. It never reaches above `tau`, or
    below 0.
    """
    mean, variance = restricted_mean(runs, tau)
    if variance is None:
        return None
    arrived = int(np.sum(runs.reached & (runs.seconds <= tau)))
    reach = float(stats.t.ppf((1 + level) / 2, arrived - 1)) * math.sqrt(variance)
    censored = not bool(np.all(runs.reached & (runs.seconds <= tau)))
    return Interval(max(0.0, mean - reach), min(mean + reach, tau if censored else math.inf), level)


def common_horizon(groups: Sequence[Sample]) -> float:
    """Up to where all groups are known; the last second of all if nothing limits them."""
    limit = min((g.horizon for g in groups if g.n), default=math.inf)
    last = max((float(g.seconds[-1]) for g in groups if g.n), default=0.0)
    return limit if math.isfinite(limit) else last


def log_mean(runs: Sample, tau: float, counts: Floats | None = None) -> Floats:
    """The restricted mean of log(time): what a geometric mean becomes under censoring.

    The exponential of it is the geometric mean of the times if all arrived by `tau`. With
    `counts` there is one value a resample.
    """
    logs = np.log(np.minimum(runs.seconds, tau))
    gaps = np.diff(np.append(logs, math.log(tau)))
    return np.asarray(logs[0] + np.sum(shares(runs, counts) * gaps, -1))


def log_rank(a: Sample, b: Sample, arrangements: int = MOST_ARRANGEMENTS) -> tuple[float, bool]:
    """The chance of a difference like this between runs of one distribution, and if it is exact.

    Exact: by all ways in which the runs could have been dealt to the two candidates, if there are
    no more than so many `arrangements`; it takes the censoring to be alike in both. Otherwise by
    the chi-square, which is too sure of itself with few runs.

    Source: Mantel, Cancer Chemotherapy Reports 50 (1966); Peto and Peto, Journal of the Royal
    Statistical Society A 135 (1972).
    """
    both = sample(np.append(a.seconds, b.seconds), np.append(a.reached, b.reached))
    if math.comb(both.n, a.n) > arrangements:
        return _chi_square(a, b), False
    weights = _scores(both)
    dealt = np.array(list(combinations(range(both.n), a.n)), dtype=np.intp)
    found = abs(float(np.sum(weights[both.order < a.n])))
    sums = np.abs(np.sum(weights[dealt], axis=1))
    return float(np.mean(sums >= found - 1e-9)), True


def _scores(both: Sample) -> Floats:
    """Each run's arrival less what was to be expected of it: their sum is observed - expected."""
    times = both.seconds
    expected = np.zeros(both.n)
    for t in np.unique(times[both.reached]):
        at_risk = times >= t
        expected[at_risk] += np.sum(both.reached & (times == t)) / np.sum(at_risk)
    return np.asarray(both.reached - expected)


def _chi_square(a: Sample, b: Sample) -> float:
    """P-value of scipy's log-rank test; 1 where it is undefined, as nothing can differ."""
    with np.errstate(invalid="ignore", divide="ignore"):
        p = float(stats.logrank(_censored(a), _censored(b)).pvalue)
    return 1.0 if math.isnan(p) else p


def holm(values: Sequence[float]) -> list[float]:
    """P-values adjusted for being several: Holm, Scandinavian Journal of Statistics 6 (1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[i]))
        adjusted[i] = highest
    return adjusted


def probability_faster(a: Sample, b: Sample) -> tuple[float, float]:
    """The chance that a run of `a` arrives before one of `b`, and how much of it is undecided.

    From both Kaplan-Meier curves; ties count half. What the runs do not say (both given up, or
    one arrives after the other was last seen) is the undecided part, and counts half too, so that
    the chance lies within half of it to either side. Without censoring it is Mann and Whitney's
    U / (n m), with one limit for all Gehan's.

    Source: Efron, Proceedings of the Fifth Berkeley Symposium 4 (1967); Gehan, Biometrika 52
    (1965).

    >>> probability_faster(sample([1.0, 2.0], [True, True]), sample([2.0, 9.0], [True, False]))
    (0.875, 0.0)
    """
    own, own_rest = _masses(a)
    other, other_rest = _masses(b)
    before = a.seconds[:, None] < b.seconds[None, :]
    equal = a.seconds[:, None] == b.seconds[None, :]
    decided = float(own @ (before + 0.5 * equal) @ other)
    within = a.seconds <= b.seconds[-1]  # b's rest is certainly later than these
    decided += float(np.sum(own[within])) * other_rest
    undecided = float(np.sum(own[~within])) * other_rest
    undecided += float(np.sum(other[b.seconds > a.seconds[-1]])) * own_rest
    undecided += own_rest * other_rest
    return min(1.0, max(0.0, decided + undecided / 2)), undecided


def _masses(runs: Sample) -> tuple[Floats, float]:
    """The probability at each run's seconds, and what is left after the last."""
    share = shares(runs)
    rest = float(share[-1])
    return -np.diff(share, prepend=1.0), rest if rest > 1e-12 else 0.0
