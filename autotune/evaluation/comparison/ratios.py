"""Geometric means, the interval of a speedup, MLPerf's mean.

The speedup itself is defined in `algorithms.ranking.speedup`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from autotune.algorithms.ranking.speedup import Speedup
from autotune.evaluation.comparison.model import Interval
from autotune.evaluation.comparison.survival import Sample, log_mean, sample

RESAMPLES = 4000
OLYMPIC_RUNS = 5  # MLPerf's rule wants five at least
Floats = NDArray[np.float64]


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


def interval(found: Speedup, seed: int = 0, level: float = 0.95) -> Interval | None:
    """The interval of a speedup by bootstrap; None where a side has only one run.

    Runs are drawn with replacement, pairs together. The interval is Student's on the logarithm,
    with the standard error and the degrees of freedom of the draws, as a percentile interval of
    five runs is far too narrow: without censoring it is Welch's t interval, or that of paired
    differences.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 5, 6 and 12;
    Hesterberg, The American Statistician 69 (2015).
    """
    a, b = (
        sample([r.seconds for r in s], [r.reached for r in s]) for s in (found.own, found.baseline)
    )
    reach = _reach(a, b, found.tau, bool(found.pairs), np.random.default_rng(seed), level)
    if reach is None:
        return None
    return Interval(found.ratio * math.exp(-reach), found.ratio * math.exp(reach), level)


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
