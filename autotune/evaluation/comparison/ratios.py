"""How much faster, and why: geometric means, their ratio with an interval, MLPerf's mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from autotune.evaluation.comparison.model import Interval, Run
from autotune.evaluation.comparison.survival import Sample, common_horizon, log_mean, sample

RESAMPLES = 4000
OLYMPIC_RUNS = 5  # MLPerf's rule wants five at least
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Speedup:
    """A baseline's geometric mean of time over a candidate's.

    Both are restricted to `tau` where runs were censored. `bound` says what the ratio then is of
    the unrestricted one: ">=" if only the baseline has runs that did not arrive by then, "<=" if
    only the candidate has, "~" if both have, "" if none. `pairs` is 0 if it is not paired.
    """

    ratio: float
    interval: Interval | None
    tau: float
    bound: str
    pairs: int


def geometric_mean(values: Sequence[float]) -> float | None:
    """The exponential of the mean logarithm; None for no values or one that is not above 0.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    if not values or min(values) <= 0:
        return None
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def olympic_mean(seconds: Sequence[float], reached: Sequence[bool]) -> float | None:
    """MLPerf's rule: the mean without the best and the worst; None for fewer than five runs.

    One run that did not arrive is the worst; with two there is no result. Source: MLPerf Training
    rules, section "Benchmark Results".

    >>> olympic_mean([1.0, 2.0, 3.0, 4.0, 100.0], [True] * 5)
    3.0
    """
    if len(seconds) < OLYMPIC_RUNS or sum(not r for r in reached) > 1:
        return None
    order = sorted(t if r else math.inf for t, r in zip(seconds, reached, strict=True))
    return math.fsum(order[1:-1]) / (len(order) - 2)


def paired(own: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Runs with equal seeds, if that leaves none of the smaller side out; otherwise none.

    A seed that a side has twice pairs nothing: which of them belongs to the other is not known.
    """
    mine = {r.seed: r for r in own if r.seed is not None}
    theirs = {r.seed: r for r in others if r.seed is not None}
    if len(mine) < len(own) or len(theirs) < len(others):
        return []
    common = [seed for seed in mine if seed in theirs]
    if len(common) < max(2, min(len(own), len(others))):
        return []
    return [(mine[seed], theirs[seed]) for seed in common]


def speedup(
    own: Sequence[Run], baseline: Sequence[Run], seed: int = 0, level: float = 0.95
) -> Speedup | None:
    """The ratio of geometric means of time to target, with an interval where runs can be drawn.

    Runs are drawn again with replacement, pairs together. The interval is Student's on the
    logarithm, with the standard error and the degrees of freedom that the draws give, as a
    percentile interval of five runs is far too narrow: without censoring it is Welch's t interval,
    or that of paired differences. None as the interval where a side has but one run.

    None where neither side has an arrival in the time up to which both were seen.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 5, 6 and 12;
    Hesterberg, The American Statistician 69 (2015).
    """
    pairs = paired(own, baseline)
    if pairs:
        own, baseline = [a for a, _ in pairs], [b for _, b in pairs]
    a, b = (sample([r.seconds for r in s], [r.reached for r in s]) for s in (own, baseline))
    tau = common_horizon([a, b])
    arrived = [bool(np.any(s.reached & (s.seconds <= tau))) for s in (a, b)]
    if not any(arrived) or min(a.seconds[0], b.seconds[0]) <= 0:
        return None
    logs = float(log_mean(b, tau)) - float(log_mean(a, tau))
    reach = _reach(a, b, tau, bool(pairs), np.random.default_rng(seed), level)
    interval = Interval(math.exp(logs - reach), math.exp(logs + reach), level) if reach else None
    if reach == 0.0:
        interval = Interval(math.exp(logs), math.exp(logs), level)
    return Speedup(math.exp(logs), interval, tau, _bound(a, b, tau), len(pairs))


def _bound(own: Sample, baseline: Sample, tau: float) -> str:
    late, base_late = (bool(np.any(~s.reached | (s.seconds > tau))) for s in (own, baseline))
    return {(False, False): "", (False, True): ">=", (True, False): "<=", (True, True): "~"}[
        late, base_late
    ]


def _reach(
    a: Sample, b: Sample, tau: float, is_paired: bool, rng: np.random.Generator, level: float
) -> float | None:
    """Half the interval's width on the log scale."""
    if min(a.n, b.n) < 2:
        return None
    if is_paired:
        drawn = _counts(a.n, rng)
        difference = log_mean(b, tau, drawn[:, b.order]) - log_mean(a, tau, drawn[:, a.order])
        variance, freedom = _variance(difference, a.n), a.n - 1.0
    else:
        parts = [(_variance(log_mean(s, tau, _counts(s.n, rng)), s.n), s.n) for s in (a, b)]
        variance = math.fsum(v for v, _ in parts)
        squares = math.fsum(v**2 / (n - 1) for v, n in parts)
        freedom = variance**2 / squares if squares > 0 else 1.0
    return float(stats.t.ppf((1 + level) / 2, freedom)) * math.sqrt(variance)


def _counts(n: int, rng: np.random.Generator) -> Floats:
    """How often each of n runs is drawn, one row a resample."""
    return rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float)


def _variance(draws: Floats, n: int) -> float:
    """The draws' variance, times n / (n - 1): drawing from n runs spreads too little."""
    found = float(np.var(draws)) * n / (n - 1)
    return found if found > 1e-24 else 0.0
