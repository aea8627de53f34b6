"""How much better a mean metric is than the baseline's, where a target has no value.

What `speedup` is for times to a value. Results are signed so that lower is better
(`Target.result`); a difference is positive where the candidate is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from autotune.algorithms.ranking.speedup import Timed, paired

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean result of the baseline less that of a candidate.

    Args:
        gain: above 0 the candidate is better, in units of the metric.
        interval: at 95 %, by Student's t of the pairs, or Welch's; None for a side with one run.
        pairs: how many pairs of runs with equal seeds it is taken over; 0 if it is not paired.
    """

    gain: float
    interval: tuple[float, float] | None
    pairs: int


def difference(own: Sequence[Timed], baseline: Sequence[Timed]) -> Difference | None:
    """The gain of the runs `own` over the baseline's, over pairs if there are; None without a mean.

    The `seconds` of a run are its result.

    >>> found = difference([Timed(-0.9, True), Timed(-0.92, True)], [Timed(-0.88, True)])
    >>> round(found.gain, 3), found.interval
    (0.03, None)
    """
    pairs = paired(own, baseline)
    mine, others = [r.seconds for r in own], [r.seconds for r in baseline]
    if not mine or not others or not all(map(math.isfinite, (*mine, *others))):
        return None
    if pairs:
        gains = [b.seconds - a.seconds for a, b in pairs]
        return Difference(fmean(gains), mean_interval(gains), len(pairs))
    gain = fmean(others) - fmean(mine)
    if min(len(mine), len(others)) < 2:
        return Difference(gain, None, 0)
    parts = [(variance(values) / len(values), len(values)) for values in (mine, others)]
    total = math.fsum(part for part, _ in parts)
    squares = math.fsum(part**2 / (count - 1) for part, count in parts)
    reach = student_t(total**2 / squares if squares > 0 else 1.0) * math.sqrt(total)
    return Difference(gain, (gain - reach, gain + reach), 0)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of a mean at 95 %, by Student's t; None for fewer than two finite values."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    reach = student_t(len(values) - 1) * math.sqrt(variance(values) / len(values))
    mean = fmean(values)
    return mean - reach, mean + reach


def student_t(freedom: float, level: float = LEVEL) -> float:
    """Half of the width of an interval, in standard errors, for so many degrees of freedom."""
    from scipy import stats

    return float(stats.t.ppf((1 + level) / 2, freedom))
