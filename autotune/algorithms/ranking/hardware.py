"""Like is ranked with like: what a trial's time is stamped with, and scores across hardware.

A study may run on nodes that differ. A time on one says nothing of a time on another, so trials are
ranked among those with an equal stamp (`trial.Hardware`). Everything here is a function of trials.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import floor

from autotune.trial import Hardware, State, Target, Trial


def began_on(trial: Trial, trials: Mapping[int, Trial]) -> Hardware | None:
    """The stamp of what the time with which a trial starts was trained on; None if it has none.

    That is its checkpoint's, be it its own or, for a fork, its parent's: wherever either of them
    was since, that is no part of this time. In older journals a fork's checkpoint has no stamp.
    """
    if not trial.seconds:
        return None
    if trial.checkpoint is not None and trial.checkpoint.hardware is not None:
        return trial.checkpoint.hardware
    if trial.attempts or trial.origin is None:
        return trial.hardware
    return trials[trial.origin.parent].hardware


def trial_fingerprint(ran: Hardware, began: Hardware | None, mixed: bool = False) -> Hardware:
    """The stamp of a trial that a group on hardware `ran` takes, and that `began_on` other.

    A trial that goes on elsewhere has a time of two kinds of hardware, and is like neither; so has
    a fork, whose time begins with its parent's. With `mixed`, the user takes all to be alike.

    >>> slow, fast = Hardware("slow"), Hardware("fast")
    >>> str(trial_fingerprint(fast, slow))
    '1 x fast (1 CPU), before on 1 x slow (1 CPU)'
    """
    ran = replace(ran, mixed=mixed)
    if began is None or mixed:
        return ran
    if replace(began, before="") == ran:
        return began
    return replace(ran, before=str(began))


def comparable_hardware(trial: Trial, trials: Mapping[int, Trial]) -> Hardware | None:
    """The hardware on which a trial's time could be ranked with that of what it comes from.

    That is what it `began_on`, or what the trial ran on that it repeats. None if it is new, or
    begins anew.
    """
    before = began_on(trial, trials)
    if before is None and trial.repeats is not None:
        before = trials[trial.repeats].hardware
    return before.now if before is not None else None


def scores(trials: Collection[Trial], target: Target) -> dict[int, float | None]:
    """Each trial's `Target.score` by its number, as the usual hardware would have it.

    On other hardware than the most trials, a trial's score is the one that has the same place among
    theirs: so a time is ranked with its like only, and a middling one counts as middling. It is the
    place when the trial ended: what comes later changes no score that a sampler was told.
    """
    found = {t.number: target.score(t) for t in trials}
    scored = [t for t in trials if found[t.number] is not None]
    if len({t.hardware for t in scored}) < 2:
        return found
    seen: dict[State, dict[Hardware, list[float]]] = {}
    for trial in sorted(scored, key=lambda t: (t.ended_at or 0.0, t.number)):
        score = found[trial.number]
        assert score is not None
        kinds = seen.setdefault(trial.state, {})
        own = kinds.setdefault(trial.hardware, [])
        insort(own, score)
        most = max(kinds.values(), key=len)
        if own is not most:
            place = (bisect_left(own, score) + 0.5) / len(own)
            found[trial.number] = _at(most, place)
    return found


def _at(values: list[float], place: float) -> float:
    """The value at a place between 0 and 1 among sorted values, in line between neighbours."""
    exact = min(max(place * len(values) - 0.5, 0.0), len(values) - 1.0)
    low = floor(exact)
    high = min(low + 1, len(values) - 1)
    return values[low] + (exact - low) * (values[high] - values[low])
