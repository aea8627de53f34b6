"""Disturbed trials: what pruners see of them, and which one is run again.

Other processes slowed such a trial down (`Trial.disturbed`), so that its time is no result: alone
it would have taken less. Samplers get it without the seconds in which it waited
(`repeats.with_mean_times`). It limits no other trial; only where most trials of the study were
disturbed is it all that there is to compare with, and then by the time that it did take, which is
no less than it would have taken alone. If it may be the fastest, it is run once more, as a race.
Where the target has no value this holds for what the limit in seconds ended: any other metric is
the same on a busy machine (`trial.is_spoilt`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from autotune.algorithms.ranking.equal_time import GapCurve
from autotune.algorithms.ranking.repeats import (
    RACE,
    config_from_scratch,
    race_leader,
    repeats_by_trial,
    searched,
    timed,
    with_mean_times,
)
from autotune.trial import LIMIT, State, Target, Trial, is_spoilt

LEAST_TIMED = 4  # trials that have ended, before most of them can have been disturbed


def only_disturbed(trials: Sequence[Trial], target: Target) -> dict[int, Trial]:
    """The trials whose result is spoilt and of which no other run has ended, by their numbers."""
    again = repeats_by_trial(trials)
    return {
        t.number: t
        for t in searched(trials)
        if is_spoilt(t, target) and all(is_spoilt(run, target) for run in again.get(t.number, ()))
    }


def mostly_disturbed(ended: int, disturbed: int) -> bool:
    """Whether most of the trials that have ended were disturbed."""
    return ended >= LEAST_TIMED and 2 * disturbed > ended


def counted(trials: Iterable[Trial]) -> tuple[int, int]:
    """How many searched trials have ended with a time, and how many of these were disturbed."""
    ended = [t for t in trials if t.repeats is None and timed(t)]
    return len(ended), sum(t.disturbed for t in ended)


def as_pruners_see(
    known: Sequence[Trial], trials: Sequence[Trial], target: Target
) -> tuple[Trial, ...]:
    """The searched trials as pruners see them: disturbed ones limit no other.

    `known` are those of `trials`, by the means of their runs.
    """
    only, mostly = only_disturbed(trials, target), mostly_disturbed(*counted(trials))
    return tuple(for_pruning(t, only[t.number], mostly) if t.number in only else t for t in known)


def for_pruning(known: Trial, own: Trial, mostly: bool) -> Trial:
    """A disturbed trial as pruners see it.

    Args:
        known: it without the seconds in which it waited.
        own: it as it was.
        mostly: whether most trials were disturbed.
    """
    if known.state is not State.REACHED:
        return known
    if mostly:
        return replace(known, seconds=max(known.seconds, own.seconds))
    return replace(known, state=State.CENSORED, reason="disturbed")


# --- run again ------------------------------------------------------------------------------------


def to_run_again(trials: Sequence[Trial], target: Target) -> Trial | None:
    """The disturbed trial to run once more, as it may be the fastest; None if there is none.

    That is the leader, by the time that it would have taken alone. Or it is the best of those that
    came to the target's limit, if nothing reached the target, or if it was ahead of the leader.
    """
    only, known = only_disturbed(trials, target), with_mean_times(trials, target)
    leader = race_leader(known, target)
    late = [t for t in known if t.number in only and came_too_late(only[t.number])]
    again = {t.repeats for t in trials if t.kind == RACE and t.repeats is not None}
    found = choose(leader, late, only.keys() - again, target)
    return found if found is not None and config_from_scratch(found, trials) is not None else None


def came_too_late(trial: Trial) -> bool:
    """Whether the trial came to the target's limit."""
    return timed(trial) and trial.state is not State.REACHED and trial.reason == LIMIT


def choose(
    leader: Trial | None,
    late: Collection[Trial],
    left: Collection[int],
    target: Target,
) -> Trial | None:
    """`to_run_again` from the leader and the disturbed trials that came to the limit.

    Both are without the seconds in which they waited. `left` are the numbers of those disturbed
    trials that have not been run again.
    """
    if leader is not None and leader.number in left:
        return leader
    curves = {t.number: GapCurve(t, target) for t in late}
    first = min(late, key=lambda t: (_gap(curves[t.number]), t.number), default=None)
    if first is None or first.number not in left:
        return None
    if leader is None:
        return first
    curve, seconds = curves[first.number], first.seconds
    if leader.hardware != first.hardware or seconds >= leader.seconds:
        return None
    return first if curve.at(seconds) < GapCurve(leader, target).at(seconds) else None


def _gap(curve: GapCurve) -> float:
    return curve.gaps[-1] if curve.gaps else float("inf")
