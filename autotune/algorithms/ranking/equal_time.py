"""Ranks of trials at equal training time, which include trials that were stopped.

A trial that was stopped has reports only up to that time. So trials are compared **at equal
seconds**: one that was stopped early is compared with what the others had at that time, and not
with what they had in the end.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
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
    trial that completed keeps its result at all later times, and one that a rule stopped is not
    better than those that went on. Who was as near to the target at every common time and was seen
    as long never ranks behind. Failed and infeasible trials are last. A trial has no rank if it is
    running or was interrupted before a fifth of the horizon.

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
    ran = [t for t in seen if t.state not in (State.FAILED, State.INFEASIBLE)]
    shares = dict(zip((t.number for t in ran), _shares_lost(ran, target, until), strict=True))
    order = {t.number: _key(t, shares) for t in seen}
    ranked = sorted(order, key=order.__getitem__)
    if len(ranked) == 1:
        return {ranked[0]: 0.5}
    ranks: dict[int, float] = {}
    for place, number in enumerate(ranked):
        tied = place and order[number] == order[ranked[place - 1]]
        ranks[number] = ranks[ranked[place - 1]] if tied else place / (len(ranked) - 1)
    return ranks


def _key(trial: Trial, shares: Mapping[int, float]) -> tuple[int, float]:
    if trial.number not in shares:
        return 2, 0.0
    return (0, trial.seconds) if trial.state is State.REACHED else (1, shares[trial.number])


def _shares_lost(trials: Sequence[Trial], target: Target, horizon: float) -> list[float]:
    """The share of the others to which each trial loses, at the last time at which both were seen.

    Gehan's scores (1965) of censored pairs, but for two things. A trial loses to none that was
    stopped before it: the rule that stopped that one expected it to be slow, and let this one go
    on. And a share is at most that of any trial which this one *dominates*, because it was as near
    to the target at every common time and was seen as long. Without the latter, a trial that led
    until the others were stopped could rank behind them: the longer it is seen, the more trials it
    can lose to.
    """
    import numpy as np

    curves = [GapCurve(trial, target) for trial in trials]
    if len(curves) < 2:
        return [0.0] * len(curves)
    ends = np.array([min(curve.until, horizon) for curve in curves])
    own = np.empty((len(curves), len(curves)))  # each one's gap at the last common time with each
    for i, curve in enumerate(curves):
        place = np.searchsorted(curve.seconds, np.minimum(ends, ends[i]), side="right")
        own[i] = np.array([math.inf, *curve.gaps])[place]
    lost = (own > own.T) + 0.5 * (own == own.T)
    stopped = np.array([t.state is State.CENSORED and not _interrupted(t) for t in trials])
    lost[(ends < ends[:, None]) & stopped] = 0.0
    np.fill_diagonal(lost, 0.0)
    shares = lost.sum(axis=1) / (len(curves) - 1)
    by_share = np.argsort(shares, kind="stable")
    least: list[float] = []
    for i, share in enumerate(shares):
        # Few trials with less lost were behind this one when they were last seen.
        behind = (shares < share) & (ends <= ends[i]) & (own[i] <= own[:, i])
        dominated = (j for j in by_share[behind[by_share]] if _led(curves[i], curves[j], ends[j]))
        least.append(float(shares[next(dominated, i)]))
    return least


def _led(curve: GapCurve, other: GapCurve, until: float) -> bool:
    """Whether a curve was as near to the target as the other one at every time up to `until`."""
    times = (t for t in (*other.seconds, *curve.seconds) if t <= until)
    return all(curve.at(t) <= other.at(t) for t in times)


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
    open_end = trial.state is State.RUNNING or _interrupted(trial)
    return not open_end or trial.seconds >= _SHARE * horizon


def _interrupted(trial: Trial) -> bool:
    return trial.reason in INTERRUPTED_REASONS
