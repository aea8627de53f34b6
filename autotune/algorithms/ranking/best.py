"""The best trial of a study and the order of the others: the one definition.

`best`, `status`, `compare`, exports, reports, MLflow and `StudyResult` all use it:

1. The best is the confirmed configuration with the least mean time of its confirmations. Before any
   is confirmed, it is the trial with the least time that one more run should take: the mean of its
   runs in the search, if leaders were run again (races).
2. The others that reached the target follow by that expected time. Among these, confirmed ones take
   each other's places so that they are in the order of their confirmed times.
3. Then come those that did not reach the target, by `Target.score`.

In a mean, a run that missed the target counts as the limit, and a disturbed run only where there is
no other, without the seconds in which it waited. Times are ranked on comparable hardware
only: confirmations on the hardware that most of them ran on, trials on that of most trials.

What samplers, pruners and races rank by while a study searches is something else: see `equal_time`
and `racing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

from autotune.algorithms.ranking.hardware import scores
from autotune.algorithms.ranking.repeats import (
    VALIDATED,
    Confirmation,
    confirmations,
    means_of_runs,
    repeats_by_trial,
    searched,
    unconfirmed,
    with_mean_times,
)
from autotune.algorithms.ranking.speedup import Speedup, speedup
from autotune.trial import State, Target, Trial, undisturbed, usual_hardware


@dataclass(frozen=True)
class Ranked:
    """A searched trial in the order of its study. `rank` is from 1; None without a ranked time."""

    trial: Trial
    rank: int | None


def best(trials: Sequence[Trial], target: Target) -> Trial | None:
    """The best trial of a study; None if none has reached the target.

    Its `seconds` are those of its first run, not of its repeats.
    """
    return next(iter(by_time(trials, target)), None)


def ranking(trials: Sequence[Trial], target: Target) -> tuple[Ranked, ...]:
    """All searched trials, the best first, with the rank of those that `by_time` ranks."""
    reached = by_time(trials, target)
    first = {t.number for t in reached}
    known = [t for t in with_mean_times(unconfirmed(trials), target) if t.number not in first]
    by_score = scores(known, target)

    def order(trial: Trial) -> tuple[bool, float, int]:
        score = by_score[trial.number]
        return score is None, score or 0.0, trial.number

    own = {t.number: t for t in searched(trials)}
    rest = [own[t.number] for t in sorted(known, key=order)]
    ranked = [Ranked(trial, rank) for rank, trial in enumerate(reached, 1)]
    return (*ranked, *(Ranked(trial, None) for trial in rest))


def by_time(trials: Sequence[Trial], target: Target) -> list[Trial]:
    """The searched trials that reached the target on comparable hardware, the best first.

    A configuration of which every confirmation missed the target is last.
    """
    known = by_expected_time(trials, target)
    own = {t.number: t for t in known}  # some reached it only when they were run again
    own |= {t.number: t for t in trials if t.state is State.REACHED}
    found = [c for c in confirmations(trials, target) if c.number in own]
    confirmed = [c.number for c in found if c.reached]
    missed = [c.number for c in found if not c.reached]
    expected = [t.number for t in known]
    expected += [number for number in confirmed if number not in expected]
    in_turn = iter(confirmed)
    order = [next(in_turn) if n in confirmed else n for n in expected if n not in missed]
    return [own[n] for n in dict.fromkeys((*confirmed[:1], *order, *missed))]


def by_expected_time(trials: Sequence[Trial], target: Target) -> list[Trial]:
    """The searched trials that reached the target, by the time that one more run should take.

    For one that has been run `VALIDATED` times that is the mean of its runs. Any other time may
    owe something to luck: it is multiplied by the median ratio of mean to first time among those
    that have been run so often. Only trials on the hardware of most trials are ranked, and
    confirmations are not used: this is how finalists are chosen. Times are the means of runs.
    """
    asked = unconfirmed(trials)
    runs = repeats_by_trial(asked)
    known = means_of_runs(asked, runs, target.limit)
    validated = {number for number, own in runs.items() if 1 + len(own) >= VALIDATED}
    first = {t.number: undisturbed(t) for t in searched(asked)}
    slower = [
        t.seconds / first[t.number].seconds
        for t in known
        if t.number in validated
        and first[t.number].state is State.REACHED
        and first[t.number].seconds
    ]
    factor = max(1.0, median_high(slower)) if slower else 1.0
    usual = usual_hardware(known)
    reached = [t for t in known if t.state is State.REACHED and t.hardware == usual]

    def order(trial: Trial) -> tuple[float, float, int]:
        expected = trial.seconds if trial.number in validated else factor * trial.seconds
        return expected, trial.seconds, trial.number

    return sorted(reached, key=order)


def confirmed_speedup(trials: Sequence[Trial], target: Target) -> Speedup | None:
    """The speedup of the best configuration over the baseline; None unless both are confirmed."""
    leading = best(trials, target)
    baseline = next((t for t in trials if t.kind == "baseline"), None)
    if leading is None or baseline is None:
        return None
    found: dict[int, Confirmation] = {c.number: c for c in confirmations(trials, target)}
    if not {leading.number, baseline.number} <= found.keys():
        return None
    return speedup(found[leading.number].timed_runs, found[baseline.number].timed_runs)
