"""How trials stand in the race to the target: an order that also places those that were stopped.

A trial that was stopped at some time is known only up to there. So trials are compared **at equal
seconds**: one that was stopped early is measured by what the others had at that time, and not by
what they had in the end.
"""

from __future__ import annotations

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

_SHARE = 0.2  # of the incumbent's time: before it, what a trial shows says next to nothing


def equal_time_ranks(trials: Sequence[Trial], target: Target) -> dict[int, float]:
    """Each trial's place, 0 for the best and 1 for the worst, by its number.

    First those that reached the target, by their time. Then the others by the share of trials that
    were better than they at the last time at which both were seen, and no later than the
    incumbent's time to target: what came after it is of no use. Failed and infeasible trials are
    last. A trial that has shown too little (cut off or running, and before a fifth of the
    incumbent's time) has no place.

    Only like is ranked with like: where trials ran on unequal hardware, each has its place among
    those on its own. What failed or never ran is placed among those on the usual one.
    """
    usual = usual_hardware(trials)
    alike: dict[Hardware | None, list[Trial]] = {}
    for trial in trials:
        timed = trial.attempts and trial.state not in (State.FAILED, State.INFEASIBLE)
        alike.setdefault(trial.hardware if timed else usual, []).append(trial)
    places: dict[int, float] = {}
    for like in alike.values():
        places |= _among(like, target)
    return places


def _among(trials: Sequence[Trial], target: Target) -> dict[int, float]:
    """The places of trials on equal hardware."""
    best = incumbent(trials)
    horizon = best.seconds if best is not None else target.limit
    seen = [t for t in trials if _shows(t, horizon)]
    curves = {t.number: GapCurve(t, target) for t in seen}
    order = {t.number: _key(t, curves, horizon) for t in seen}
    ranked = sorted(order, key=order.__getitem__)
    if len(ranked) == 1:
        return {ranked[0]: 0.5}
    places: dict[int, float] = {}
    for place, number in enumerate(ranked):
        tied = place and order[number] == order[ranked[place - 1]]
        places[number] = places[ranked[place - 1]] if tied else place / (len(ranked) - 1)
    return places


class GapCurve:
    """How far a trial was from the target at any time, at its best so far.

    `until` is the last second at which it was seen; a trial that reached the target stays there.
    """

    def __init__(self, trial: Trial, target: Target) -> None:
        reports = [r for r in trial.reports if target.metric in r.metrics]
        gaps = (target.shortfall(r.metrics[target.metric]) for r in reports)
        self.seconds = [r.seconds for r in reports]
        self.gaps = list(accumulate(gaps, min))
        reached = trial.state is State.REACHED
        self.until = float("inf") if reached else self.seconds[-1] if reports else 0.0

    def at(self, seconds: float) -> float:
        """The gap to the target after so many seconds; infinite before the first report."""
        place = bisect_right(self.seconds, seconds)
        return self.gaps[place - 1] if place else float("inf")


class GapCurves:
    """GapCurves, worked out once for each trial as it is: a memory that changes no answer."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Trial, Target, GapCurve]] = {}

    def of(self, trial: Trial, target: Target) -> GapCurve:
        held = self._held.get(trial.number)
        if held is None or held[0] is not trial or held[1] is not target:
            held = self._held[trial.number] = trial, target, GapCurve(trial, target)
        return held[2]

    def keep(self, trials: Sequence[Trial]) -> None:
        """Forget the others, once they are the most of them."""
        if len(self._held) > 2 * len(trials) + 100:
            kept = {t.number for t in trials}
            self._held = {n: held for n, held in self._held.items() if n in kept}


def _shows(trial: Trial, horizon: float) -> bool:
    if trial.state in (State.REACHED, State.FAILED, State.INFEASIBLE):
        return True
    open_end = trial.state is State.RUNNING or trial.reason in INTERRUPTED_REASONS
    return not open_end or trial.seconds >= _SHARE * horizon


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
