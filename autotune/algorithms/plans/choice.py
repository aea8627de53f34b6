"""Which plan is probed next, and which one is kept: functions of the probes so far.

1. The default plan, and after every other probe that has measured: pairs, between which a machine
   that slows down cancels.
2. Each alternative once, in the order in which they are given, as long as the budget lasts; the
   last pair is kept back for 4, and with two that are faster another one for 3.
3. Of those that are faster and not only by chance, the best of each parameter: all of them
   together, and so on to the best two together and the best alone. They are probed in rounds, of
   which each leaves the faster half (successive halving, Jamieson and Talwalkar 2016), to the last.
4. The fastest once more, if it was probed once, also if that may still be chance. If it is not,
   this may come after the budget is over: where that pays for one alternative only, or a probe took
   longer than those before.

The fastest that is faster than the default beyond chance in at least two probes is kept; the
default where none is. A plan with a probe that fails is out, and not probed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from autotune.algorithms.plans.measured import measured, nothing_decided
from autotune.algorithms.plans.probed import LEAST_GAIN, ProbedPlan, ended, probed_plans, same
from autotune.algorithms.ranking.repeats import probes
from autotune.trial import Params, Trial
from autotune.trial.values import point_key

LEAST_RUNS = 2
"""Probes of the plan that is kept: the best of many single ones is the luckiest."""

SHARE = 0.05
"""Of a study's seconds: what probes may take."""

Combine = Callable[[Sequence[ProbedPlan]], Params | None]
"""The point with the changes of several plans together; None where that is not allowed."""


def budget(trials: int, limit: float | None, time_limit: float | None) -> float | None:
    """The seconds that probes may take; None where nothing says how long the study takes.

    Args:
        trials: of the study, in all.
        limit: seconds of a trial, at most.
        time_limit: seconds of the study.

    >>> budget(20, 30.0, None), budget(20, 30.0, 60.0), budget(20, 30.0, 3600.0)
    (30.0, 3.0, 30.0)
    >>> budget(20, None, None) is None
    True
    """
    trained = trials * limit if limit is not None else math.inf
    whole = min(trained, time_limit if time_limit is not None else math.inf)
    return SHARE * whole if math.isfinite(whole) else None


def next_probe(
    trials: Iterable[Trial],
    default: Params,
    alternatives: Sequence[Params],
    combine: Combine,
    seconds: float,
) -> Params | None:
    """The point of the next probe; None once there is nothing more to probe, or to pay for.

    Args:
        trials: all of them; of those that are probes, all have ended.
        default: the point of the default plan.
        alternatives: further points, the one that promises most first.
        seconds: the budget. The default and one alternative are probed in any case, and what would
            be kept once more.
    """
    done = ended(trials)
    if not done:
        return default if alternatives else None
    if nothing_decided(done[0]):
        return None
    last = done[-1]
    if not same(last.params, default) and measured(last) is not None:
        return default
    known = probed_plans(done)
    probed = {point_key(plan.point) for plan in known}
    if not known:
        return alternatives[0] if alternatives else None
    pairs = left_pairs(trials, seconds)
    reserve = 2 if len(combinations(known, combine)) > 1 else 1  # a combination, and what is kept
    if pairs > reserve:
        for point in alternatives:
            if point_key(point) not in probed:
                return point
    if pairs > 1 and (again := _again(known, combine)) is not None:
        return again
    never_repeated = all(plan.runs < LEAST_RUNS for plan in known)
    over = never_repeated and any(plan.faster for plan in known)  # a probe took more than expected
    return _unsure(known) if pairs > 0 or over else None


def left_pairs(trials: Iterable[Trial], seconds: float) -> int:
    """How many pairs of probes are still to be paid for."""
    every = probes(trials)
    spent = math.fsum(trial.spent_seconds for trial in every)
    costs = [t.spent_seconds for t in every if measured(t) is not None]
    pair = 2 * fmean(costs)
    return math.floor((seconds - spent) / pair + 1e-9) if pair > 0 else 1


def _unsure(known: Sequence[ProbedPlan]) -> Params | None:
    """The plan that would be kept, else what looks fastest, if it has too few probes for it."""
    hopeful = [p for p in known if _measures(p) and (p.ratio or 0.0) >= LEAST_GAIN]
    best = _fastest(known) or max(hopeful, key=lambda p: p.ratio or 0.0, default=None)
    return best.point if best is not None and best.runs < LEAST_RUNS else None


def _again(known: Sequence[ProbedPlan], combine: Combine) -> Params | None:
    """The next of the combinations, in rounds of which each leaves the faster half.

    That of all comes first: a small budget pays for no other.
    """
    by_key = {point_key(plan.point): plan for plan in known}
    alive = combinations(known, combine)[::-1]
    runs = 1
    while alive:
        for point in alive:
            plan = by_key.get(point_key(point))
            if plan is None or (plan.runs < runs and _measures(plan)):
                return point
        if len(alive) == 1 and runs >= LEAST_RUNS:
            return None
        known_now = [by_key[point_key(p)] for p in alive if _measures(by_key[point_key(p)])]
        best = sorted(known_now, key=lambda plan: plan.ratio or 0.0, reverse=True)
        alive = [plan.point for plan in best[: max(len(alive) // 2, 1)]]
        runs += 1
    return None


def _measures(plan: ProbedPlan) -> bool:
    return plan.ratio is not None and not plan.failed


def combinations(known: Sequence[ProbedPlan], combine: Combine) -> list[Params]:
    """The best plan alone, the best two together, and so on: one of each parameter."""
    winners: list[ProbedPlan] = []
    for plan in sorted(_single(known), key=lambda p: p.ratio or 0.0, reverse=True):
        if plan.faster and not any(plan.names & other.names for other in winners):
            winners.append(plan)
    together = [combine(winners[:count]) for count in range(2, len(winners) + 1)]
    return [*(w.point for w in winners[:1]), *(point for point in together if point is not None)]


def _single(known: Sequence[ProbedPlan]) -> list[ProbedPlan]:
    """The plans that are no union of others."""
    return [
        plan
        for plan in known
        if not any(
            other is not plan and set(map(repr, other.changes)) < set(map(repr, plan.changes))
            for other in known
        )
    ]


def chosen(trials: Iterable[Trial]) -> ProbedPlan | None:
    """The plan to be kept; None for the default."""
    return _fastest([plan for plan in probed_plans(trials) if plan.runs >= LEAST_RUNS])


def _fastest(plans: Sequence[ProbedPlan]) -> ProbedPlan | None:
    """The fastest of those that are faster than the default; None where none is."""
    faster = [plan for plan in plans if plan.faster]
    return max(faster, key=lambda plan: plan.ratio or 0.0, default=None)
