"""Comparable hardware: the fingerprint of a trial's time, and scores across hardware.

A study may run on different nodes. Times on unequal hardware are not comparable, so a trial is
ranked among those with an equal fingerprint (`trial.Hardware`). Everything here is a function of
trials.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import floor

from autotune.algorithms.ranking.repeats import PROBE, probes
from autotune.trial import Hardware, State, Target, Trial


def began_on(trial: Trial, trials: Mapping[int, Trial]) -> Hardware | None:
    """The hardware of the time with which a trial's next attempt starts; None if that is 0.

    It is the checkpoint's, the trial's own or, for a fork, its parent's: later attempts of either
    are no part of this time. In older journals a fork's checkpoint has no hardware.
    """
    if not trial.seconds:
        return None
    if trial.checkpoint is not None and trial.checkpoint.hardware is not None:
        return trial.checkpoint.hardware
    if trial.attempts or trial.origin is None:
        return trial.hardware
    return trials[trial.origin.parent].hardware


def trial_fingerprint(ran: Hardware, began: Hardware | None, mixed: bool = False) -> Hardware:
    """The fingerprint of a trial that runs on hardware `ran` and began on hardware `began`.

    The time of a trial that moves to other hardware is comparable with that of neither; the same
    holds for a fork, whose time begins with its parent's. With `mixed`, the user takes all hardware
    as comparable.

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
    """The hardware on which a trial's time stays comparable with its origin's; None for any.

    It is the hardware that it `began_on`, or that of the trial that it repeats; for a probe that of
    the first one.
    """
    before = began_on(trial, trials)
    if before is None and trial.repeats is not None:
        before = trials[trial.repeats].hardware
    if before is None and trial.kind == PROBE:
        before = next((t.hardware for t in probes(trials.values()) if t.attempts), None)
    return before.now if before is not None else None


def scores(trials: Collection[Trial], target: Target) -> dict[int, float | None]:
    """Each trial's `Target.score` by its number, mapped to the hardware of most trials.

    The score of a trial on other hardware is the score with the same quantile among those on the
    hardware of most trials, so that times are ranked on equal hardware only. The quantile is that
    at the trial's end: later trials change no score that a sampler has.
    """
    result = {t.number: target.score(t) for t in trials}
    scored = [t for t in trials if result[t.number] is not None]
    if len({t.hardware for t in scored}) < 2:
        return result
    seen: dict[State, dict[Hardware, list[float]]] = {}
    for trial in sorted(scored, key=lambda t: (t.ended_at or 0.0, t.number)):
        score = result[trial.number]
        assert score is not None
        kinds = seen.setdefault(trial.state, {})
        own = kinds.setdefault(trial.hardware, [])
        insort(own, score)
        most = max(kinds.values(), key=len)
        if own is not most:
            quantile = (bisect_left(own, score) + 0.5) / len(own)
            result[trial.number] = _value_at(most, quantile)
    return result


def _value_at(values: list[float], quantile: float) -> float:
    """The quantile of sorted values, linearly interpolated; `quantile` is between 0 and 1."""
    exact = min(max(quantile * len(values) - 0.5, 0.0), len(values) - 1.0)
    low = floor(exact)
    high = min(low + 1, len(values) - 1)
    if exact == low:  # also where the next one is infinite
        return values[low]
    return values[low] + (exact - low) * (values[high] - values[low])
