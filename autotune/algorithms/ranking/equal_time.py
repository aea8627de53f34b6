"""Ranks of trials at equal training time, which include trials that were stopped.

A trial that was stopped has reports only up to that time. So trials are compared **at equal
seconds**: one that was stopped early is compared with what the others had at that time, and not
with what they had in the end.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from autotune.trial import (
    INTERRUPTED_REASONS,
    Hardware,
    State,
    Target,
    Trial,
    incumbent,
    usual_hardware,
)

_SHARE = 0.2  # of the incumbent's time; reports before it are too early for a rank


def equal_time_ranks(trials: Sequence[Trial], target: Target) -> dict[int, float]:
    """Each trial's rank, 0 for the best and 1 for the worst, by its number.

    Trials that reached the target are first, by their time. Then the others, by the share of trials
    that were better at the last time at which both have reports, and no later than the `horizon`; a
    trial that completed keeps its result at all later times. Failed and infeasible trials are last.
    A trial has no rank if it is running or was interrupted before a fifth of the horizon.

    Only trials on comparable hardware are ranked together: with unequal hardware, each trial has a
    rank among those on its own. Trials that failed or never ran are ranked on the usual hardware.
    """
    usual = usual_hardware(trials)
    groups: dict[Hardware | None, list[Trial]] = {}
    for trial in trials:
        timed = trial.attempts and trial.state not in (State.FAILED, State.INFEASIBLE)
        groups.setdefault(trial.hardware if timed else usual, []).append(trial)
    ranks: dict[int, float] = {}
    for group in groups.values():
        ranks |= _ranks_on_equal_hardware(group, target)
    return ranks


def _ranks_on_equal_hardware(trials: Sequence[Trial], target: Target) -> dict[int, float]:
    """The ranks of trials on equal hardware."""
    until = horizon(trials, target)
    seen = [t for t in trials if _has_rank(t, until)]
    curves = {t.number: GapCurve(t, target) for t in seen}
    key = _key if target.timed else _key_without_value
    order = {t.number: key(t, curves, until) for t in seen}
    ranked = sorted(order, key=order.__getitem__)
    if len(ranked) == 1:
        return {ranked[0]: 0.5}
    ranks: dict[int, float] = {}
    for place, number in enumerate(ranked):
        tied = place and order[number] == order[ranked[place - 1]]
        ranks[number] = ranks[ranked[place - 1]] if tied else place / (len(ranked) - 1)
    return ranks


def horizon(trials: Sequence[Trial], target: Target, hardware: Hardware | None = None) -> float:
    """Until when trials are compared: the incumbent's time to target, or else the limit.

    Where nothing limits the trials it is the longest time of one of them.
    """
    best = incumbent(trials, hardware)
    if best is not None:
        return best.seconds
    if math.isfinite(target.horizon):
        return target.horizon
    return max((t.seconds for t in trials if hardware in (None, t.hardware)), default=0.0)


class GapCurve:
    """The gap of a trial to the target as a function of time: best so far, or as last reported.

    `until` is the time of its last report; infinite for a trial that reached the target or
    completed. Without a value the gap is the metric, signed so that lower is better.
    """

    def __init__(self, trial: Trial, target: Target) -> None:
        reports = [r for r in trial.reports if target.metric in r.metrics]
        if not target.timed:
            reports = [r for r in reports if target.in_time(r)]
        gaps = (target.shortfall(r.metrics[target.metric]) for r in reports)
        self.seconds = [r.seconds for r in reports]
        self.gaps = list(accumulate(gaps, min) if target.scope == "best" else gaps)
        self.until = math.inf if trial.succeeded else self.seconds[-1] if reports else 0.0

    def at(self, seconds: float) -> float:
        """The gap to the target after so many seconds; infinite before the first report."""
        place = bisect_right(self.seconds, seconds)
        return self.gaps[place - 1] if place else float("inf")


class GapCurves:
    """Cache of trials' gap curves, which changes no result."""

    def __init__(self) -> None:
        self._cached: dict[int, tuple[Trial, Target, GapCurve]] = {}

    def of(self, trial: Trial, target: Target) -> GapCurve:
        cached = self._cached.get(trial.number)
        if cached is None or cached[0] is not trial or cached[1] is not target:
            cached = self._cached[trial.number] = trial, target, GapCurve(trial, target)
        return cached[2]

    def keep(self, trials: Sequence[Trial]) -> None:
        """Drop the curves of other trials once they are the majority."""
        if len(self._cached) > 2 * len(trials) + 100:
            kept = {t.number for t in trials}
            self._cached = {n: cached for n, cached in self._cached.items() if n in kept}


def _has_rank(trial: Trial, horizon: float) -> bool:
    if trial.succeeded or trial.state in (State.FAILED, State.INFEASIBLE):
        return True
    open_end = trial.state is State.RUNNING or trial.reason in INTERRUPTED_REASONS
    return not open_end or trial.seconds >= _SHARE * horizon


def _key_without_value(
    trial: Trial, curves: dict[int, GapCurve], horizon: float
) -> tuple[int, float]:
    """The share of trials that were better, each at the last time that both have."""
    if trial.state in (State.FAILED, State.INFEASIBLE):
        return 2, 0.0
    own, better = curves[trial.number], 0.0
    others = [curve for number, curve in curves.items() if number != trial.number]
    for other in others:
        seconds = min(own.until, other.until, horizon)
        gap, its = own.at(seconds), other.at(seconds)
        better += 1.0 if its < gap else 0.5 if its == gap else 0.0
    return 1, better / max(len(others), 1)


def _key(trial: Trial, curves: dict[int, GapCurve], horizon: float) -> tuple[int, float]:
    if trial.state is State.REACHED:
        return 0, trial.seconds
    if trial.state in (State.FAILED, State.INFEASIBLE):
        return 2, 0.0
    own = curves[trial.number]
    seconds = min(own.until, horizon)
    gap = own.at(seconds)
    others = [c.at(seconds) for n, c in curves.items() if n != trial.number and c.until >= seconds]
    better = sum(other < gap for other in others) + 0.5 * sum(other == gap for other in others)
    return 1, (better + 0.5) / (len(others) + 1)
