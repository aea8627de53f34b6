"""Races: during the search the leading configuration is run again on fresh seeds.

A share of the seconds that the study trains goes into races, all of them in the second half of the
search (`study.driver.replication`). The leader by the mean of its runs is raced: if it was merely
lucky it falls back, and the next one is raced in its place; so a challenger is run again only if it
was faster than the validated time of the incumbent (the intensification of ROAR and SMAC, Hutter et
al. 2011). The incumbent whose time limits other trials is one that has been run again. Where every
run takes as long as the first, repeats show nothing, and there are no more races.

All of this is for the search. Which trial is best is defined in `best`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.algorithms.ranking import disturbed
from autotune.algorithms.ranking.repeats import (
    RACE,
    config_from_scratch,
    race_leader,
    timed,
    with_mean_times,
)
from autotune.trial import (
    INTERRUPTED_REASONS,
    Hardware,
    State,
    Target,
    Trial,
    incumbent,
    is_spoilt,
)

MOST = 5  # runs of one configuration
_ENOUGH = 3  # repeats that show whether times vary
_EXACT = 0.01  # of the first run's time: within it, times do not vary


def due(trials: Sequence[Trial], target: Target, share: float) -> Trial | None:
    """The trial to race now, or None: the leader, while races have had less than their share.

    The share is of the seconds of all trials; running races and this one count with the time that
    they should take.
    """
    known = with_mean_times(trials, target)
    leader, races = race_leader(known, target), [t for t in trials if t.kind == RACE]
    if (
        leader is None
        or race_outcome(known, trials, target).deterministic
        or config_from_scratch(leader, trials) is None
    ):
        return None
    means = {t.number: t for t in known}
    return leader if affordable(leader, races, means, sum(map(cost, trials)), share) else None


def affordable(
    leader: Trial, races: Sequence[Trial], means: Mapping[int, Trial], spent: int, share: float
) -> bool:
    """Whether the leader may be raced now: fewer than `MOST` runs, and within the share of races.

    `races` are all so far, `means` the searched trials with the means of their runs, and `spent`
    the microseconds of all trials.
    """
    own = [t for t in races if t.repeats == leader.number and t.reason not in INTERRUPTED_REASONS]
    if 1 + len(own) >= MOST:
        return False
    raced = 0
    for race in races:
        assert race.repeats is not None
        least = 0 if race.ended else micro(means[race.repeats].seconds)
        raced += max(cost(race), least)
    return raced + micro(leader.seconds) <= share * spent


def micro(seconds: float) -> int:
    """Microseconds: whole numbers have the same sum in whatever order they are added."""
    return round(1e6 * seconds)


def cost(trial: Trial) -> int:
    """Microseconds on the target's clock that were trained for this trial alone."""
    shared = trial.origin.reports if trial.origin is not None else ()
    return micro(trial.seconds - (shared[-1].seconds if shared else 0.0))


def for_pruning(trials: Sequence[Trial], target: Target) -> tuple[Trial, ...]:
    """The searched trials as pruners and controllers see them.

    One that was faster than the best of those that have been run again counts as no faster than
    that, as it may have been lucky. Where times do not vary it counts as fast as it was.
    """
    known = with_mean_times(trials, target)
    outcome = race_outcome(known, trials, target)
    seen = disturbed.as_pruners_see(known, trials, target)
    return tuple(limited(t, outcome) for t in seen)


@dataclass(frozen=True)
class RaceOutcome:
    """The results of repeats during the search.

    Args:
        fastest: for each kind of hardware the fastest trial that has been run again, by its mean.
        deterministic: whether each of at least three repeats had the result of the first run.
    """

    fastest: Mapping[Hardware | None, Trial]
    deterministic: bool


NO_RACES = RaceOutcome({}, deterministic=False)


def race_outcome(known: Sequence[Trial], trials: Sequence[Trial], target: Target) -> RaceOutcome:
    """The results of the repeats in `trials`; `known` are the searched trials by their means."""
    own = {t.number: t for t in trials}
    pairs = [(t, own[t.repeats]) for t in trials if t.repeats is not None and t.ended]
    pairs = [(repeat, first) for repeat, first in pairs if repeat.hardware == first.hardware]
    raced = {first.number for _, first in pairs}
    raced -= disturbed.only_disturbed(trials, target).keys()
    rerun = [t for t in known if t.number in raced]
    fastest = ((hardware, incumbent(rerun, hardware)) for hardware in {t.hardware for t in rerun})
    alone = [pair for pair in pairs if not any(is_spoilt(t, target) for t in pair)]
    equal = [_is_equal(repeat, first, target) for repeat, first in alone if timed(repeat)]
    return RaceOutcome(
        {hardware: trial for hardware, trial in fastest if trial is not None},
        deterministic=len(equal) >= _ENOUGH and all(equal),
    )


def _is_equal(repeat: Trial, first: Trial, target: Target) -> bool:
    """Whether the repeat had the result of the first run, but for the clock's noise."""
    if target.timed:
        difference = abs(repeat.seconds - first.seconds)
        return repeat.succeeded and difference <= _EXACT * first.seconds
    return repeat.succeeded and target.result(repeat) == target.result(first)


def limited(trial: Trial, outcome: RaceOutcome) -> Trial:
    """The trial, no faster than the fastest of those that were run again."""
    fastest = outcome.fastest.get(trial.hardware)
    if fastest is None or outcome.deterministic or trial.state is not State.REACHED:
        return trial
    return replace(trial, seconds=fastest.seconds) if trial.seconds < fastest.seconds else trial
