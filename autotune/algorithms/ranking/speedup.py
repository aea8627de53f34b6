"""Speedup: the baseline's geometric mean of time to target over a candidate's.

This is the one definition. `StudyResult`, MLflow, the commands, reports and comparisons all call
it; `evaluation.comparison.ratios` adds an interval to it where one is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar


class TimedRun(Protocol):
    """One run: its time to target if `reached`, else a time that it is known to exceed."""

    @property
    def seconds(self) -> float: ...
    @property
    def reached(self) -> bool: ...
    @property
    def seed(self) -> int | None: ...


class Timed(NamedTuple):
    """The least that is a `TimedRun`."""

    seconds: float
    reached: bool
    seed: int | None = None


R = TypeVar("R", bound=TimedRun)


@dataclass(frozen=True)
class Speedup:
    """A baseline's geometric mean of time over a candidate's.

    Args:
        ratio: above 1 is faster than the baseline.
        tau: seconds up to which both means are taken, where runs were censored.
        bound: what the ratio is of the unrestricted one: ">=" if only the baseline has runs that
            did not reach the target by `tau`, "<=" if only the candidate has, "~" if both have,
            "" if none.
        pairs: how many pairs of runs with equal seeds it is taken over; 0 if it is not paired.
        own, baseline: the runs that it is taken over.
    """

    ratio: float
    tau: float
    bound: str
    pairs: int
    own: tuple[TimedRun, ...] = field(repr=False)
    baseline: tuple[TimedRun, ...] = field(repr=False)


def speedup(own: Sequence[TimedRun], baseline: Sequence[TimedRun]) -> Speedup | None:
    """The baseline's geometric mean of time to target over that of `own`, over pairs if there are.

    None where neither side has a run that reached the target in the time for which both were
    observed.

    >>> found = speedup([Timed(2.0, True), Timed(4.0, True)], [Timed(8.0, True)])
    >>> round(found.ratio, 3), found.bound
    (2.828, '')
    >>> speedup([Timed(5.0, True)], [Timed(30.0, False)]).bound
    '>='
    """
    pairs = paired(own, baseline)
    if pairs:
        own, baseline = [a for a, _ in pairs], [b for _, b in pairs]
    tau = _common_horizon(own, baseline)
    late = [any(not r.reached or r.seconds > tau for r in runs) for runs in (own, baseline)]
    arrived = any(r.reached and r.seconds <= tau for r in (*own, *baseline))
    if not arrived or min(r.seconds for r in (*own, *baseline)) <= 0:
        return None
    ratio = math.exp(_log_mean(baseline, tau) - _log_mean(own, tau))
    bound = {(False, False): "", (False, True): ">=", (True, False): "<=", (True, True): "~"}
    return Speedup(ratio, tau, bound[late[0], late[1]], len(pairs), tuple(own), tuple(baseline))


def paired(own: Sequence[R], others: Sequence[R]) -> list[tuple[R, R]]:
    """Runs with equal seeds, if that leaves none of the smaller side out; otherwise none.

    A seed that one side has twice pairs nothing: which of the two runs belongs to the other side's
    is not known.
    """
    mine = {r.seed: r for r in own if r.seed is not None}
    theirs = {r.seed: r for r in others if r.seed is not None}
    if len(mine) < len(own) or len(theirs) < len(others):
        return []
    common = [seed for seed in mine if seed in theirs]
    if len(common) < max(2, min(len(own), len(others))):
        return []
    return [(mine[seed], theirs[seed]) for seed in common]


def _common_horizon(*groups: Sequence[TimedRun]) -> float:
    """Seconds for which all groups were observed; the last second of all if nothing limits them."""
    last = [max(runs, key=lambda r: (r.seconds, not r.reached)) for runs in groups]
    limits = [run.seconds for run in last if not run.reached]
    return min(limits, default=max(run.seconds for run in last))


def _log_mean(runs: Sequence[TimedRun], tau: float) -> float:
    """The mean logarithm of min(time, tau) under the runs' Kaplan-Meier curve."""
    order = sorted(runs, key=lambda r: (r.seconds, not r.reached))
    times = [math.log(min(r.seconds, tau)) for r in order] + [math.log(tau)]
    total, share = times[0], 1.0
    for place, run in enumerate(order):
        if run.reached:
            share *= 1 - 1 / (len(order) - place)
        total += share * (times[place + 1] - times[place])
    return total
