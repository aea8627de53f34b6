"""The time that one more run of a configuration should take.

The fastest of many runs was lucky in two ways: it was faster than its configuration's other runs,
and it did not miss the target, as others of these may. Neither is known after one run, and little
after three. So a time is multiplied by the slow-down of configurations that were run again, and for
the runs that may miss a share of the limit is added: a configuration's own share of misses, shrunk
towards that of configurations that are about as fast (a Beta prior worth `_PRIOR` runs), as the
fastest are those that take the greatest risks, short schedules for example. So a configuration
that reached the target in ten runs leads before one that was a little faster in three.

A configuration that is faster than the baseline often takes a risk that the baseline does not take,
and in a short search no run has shown it yet. So a share is added for misses that were not seen. It
grows with the square of the speed, up to 2.5 times the baseline's, and is learned from the repeats
of other configurations (`_unseen`). Such a miss counts as a few of the baseline's times at most: a
far limit must not outweigh what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median_high

from autotune.algorithms.ranking.repeats import VALIDATED, alone, searched, timed
from autotune.trial import Target, Trial, is_spoilt

_PRIOR = 1.0  # runs
_ANY, _MISSED = 2.0, 0.5  # runs that each prior has had, and how many of them missed
_ALIKE = 0.35  # deviation of the logarithm of times that are about as fast
_EXACT = 0.01  # of the first run's time: within it, times do not vary
_ENOUGH = 3  # repeats that show whether times vary
_RISK, _RISK_RUNS = 0.15, 8.0  # misses in a run at the baseline's speed; runs that prior is worth
_UNSEEN = 3.0  # times the baseline's time: what a miss that was not seen counts as, at most
_RISKIEST = 2.5  # times as fast as the baseline: whatever is faster is as likely to miss


def expected_seconds(
    trials: Sequence[Trial], runs: Mapping[int, Sequence[Trial]], target: Target
) -> dict[int, float]:
    """Of each configuration that reached the target in some run, by the number of its trial.

    In seconds of the target's clock, or steps where these are the clock. Runs count as for their
    mean (`repeats.with_mean_times`). Without any repeats the order is that of the times.

    Args:
        trials: the searched trials are those that it is of.
        runs: the repeats that count of each, as from `repeats.repeats_by_trial`.
        target: with a value.
    """
    every = {
        t.number: [t, *runs.get(t.number, ())]
        for t in searched(trials)
        if t.succeeded or (t.number in runs and timed(t))
    }
    counted = {number: alone(own, target) for number, own in every.items()}
    reached = {number: [r.seconds for r in own if r.succeeded] for number, own in counted.items()}
    again = {number: _again(own, target) for number, own in every.items()}
    exact = never_vary(trials, runs, target)
    times = {number: fmean(own) for number, own in reached.items() if own}
    tested = [(times[n], n, run.succeeded) for n in times for run in again[n]]
    slower = 1.0 if exact else _slower(counted)
    tried = (t.number for t in trials if t.kind == "baseline")
    baseline = next((times[n] for n in tried if n in times and again[n]), None)

    def seconds(number: int) -> float:
        validated = len(counted[number]) >= VALIDATED
        time = times[number] * (1.0 if validated else slower)
        own = again[number]
        if exact:
            usual = unseen = 0.0
        else:
            usual = _usual(times[number], number, tested)
            unseen = min(_unseen(time, number, tested, baseline), 1 - usual)
        missed = (sum(not r.succeeded for r in own) + _PRIOR * usual) / (len(own) + _PRIOR)
        seen = (1 - missed) * time + missed * target.horizon
        share = _PRIOR * unseen / (len(own) + _PRIOR)
        longest = min(target.horizon, _UNSEEN * (baseline or 0.0))
        return seen + share * max(longest - time, 0.0)

    return {number: seconds(number) for number in times}


def never_vary(
    trials: Sequence[Trial], runs: Mapping[int, Sequence[Trial]], target: Target
) -> bool:
    """Whether at least three repeats all had the result of the run that they repeat."""
    first = {t.number: t for t in trials}
    pairs = [(run, first[number]) for number, own in runs.items() for run in own]
    equal = [
        _is_equal(run, tried, target)
        for run, tried in pairs
        if not any(is_spoilt(t, target) for t in (run, tried))
    ]
    return len(equal) >= _ENOUGH and all(equal)


def _is_equal(repeat: Trial, first: Trial, target: Target) -> bool:
    """Whether the repeat had the result of the first run, but for the clock's noise."""
    if target.timed:
        difference = abs(repeat.seconds - first.seconds)
        return repeat.succeeded and difference <= _EXACT * first.seconds
    return repeat.succeeded and target.result(repeat) == target.result(first)


def _again(own: Sequence[Trial], target: Target) -> list[Trial]:
    """The runs that show how often a configuration misses the target.

    The first does not, if it reached the target: it was chosen because it did. Where the first was
    disturbed, the one that replaces it is the first, so that being run again for that is no merit.
    """
    measured = [run for run in own if not is_spoilt(run, target)]
    return [run for i, run in enumerate(measured) if i or not run.succeeded]


def _usual(seconds: float, number: int, tested: Sequence[tuple[float, int, bool]]) -> float:
    """The share of runs that missed among those of other configurations that are about as fast."""
    weights = [
        (math.exp(-(math.log(own / seconds) ** 2) / (2 * _ALIKE**2)), reached)
        for own, other, reached in tested
        if other != number and own > 0 < seconds
    ]
    missed = math.fsum(weight for weight, reached in weights if not reached)
    return (missed + _MISSED) / (math.fsum(weight for weight, _ in weights) + _ANY)


def _unseen(
    seconds: float,
    number: int,
    tested: Sequence[tuple[float, int, bool]],
    baseline: float | None,
) -> float:
    """How much more often a configuration may miss than one that is as fast as the baseline.

    A share of runs, `rate * (speed**2 - 1)` for a configuration `speed` times as fast, which counts
    as `_RISKIEST` at most; `rate` is the number of misses of other configurations over the sum of
    `speed**2` of their runs, with a prior. 0 without a baseline that has been run again: a single
    run says little, the less if it was the first of a cold worker.
    """
    if not baseline or not seconds:
        return 0.0

    def risk(own: float) -> float:
        return min(baseline / own, _RISKIEST) ** 2

    others = [(own, reached) for own, other, reached in tested if other != number and own > 0]
    misses = sum(not reached for _, reached in others)
    exposed = math.fsum(risk(own) for own, _ in others)
    rate = (_RISK * _RISK_RUNS + misses) / (_RISK_RUNS + exposed)
    return max(rate * (risk(seconds) - 1), 0.0)


def _slower(counted: Mapping[int, Sequence[Trial]]) -> float:
    """The median ratio of the mean of those that reached the target to the first, at least 1."""
    ratios = [
        fmean(run.seconds for run in own if run.succeeded) / own[0].seconds
        for own in counted.values()
        if len(own) >= VALIDATED
        if own[0].repeats is None and own[0].succeeded and own[0].seconds
    ]
    return max(1.0, median_high(ratios)) if ratios else 1.0
