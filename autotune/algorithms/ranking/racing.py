"""Races: during the search the leading configuration is run again on fresh seeds.

A share of the seconds that the study trains goes into races, from the start of the search
(`study.driver.replication`). First the baseline is run again, unless others are far faster, until
it has had `VALIDATED` runs: many searches only just beat it, and its own run was the first of a
cold worker. Then the configuration is raced whose next run should be the fastest (`expected`), up
to `MOST` runs in all: if it was merely lucky it falls back, and the next one is raced in its place.
A leader that has had `VALIDATED` runs waits for those whose own runs took less than it should take,
so a challenger is run again only if it may be faster than the validated time of the incumbent (the
intensification of ROAR and SMAC, Hutter et al. 2011). A race that takes `GIVE_UP` times as long as
the first run ends, and counts as one that missed the target. What limits other trials is the mean
time of the configuration, of those that have been run again, whose next run should be the fastest.
Where every run takes as long as the first, repeats show nothing, and there are no more races.

All of this is for the search. Which trial is best is defined in `best`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.algorithms.ranking import disturbed
from autotune.algorithms.ranking.expected import expected_seconds, never_vary
from autotune.algorithms.ranking.repeats import (
    RACE,
    VALIDATED,
    config_from_scratch,
    repeats_by_trial,
    with_mean_times,
)
from autotune.trial import (
    INTERRUPTED_REASONS,
    Hardware,
    State,
    Stop,
    Target,
    Trial,
    usual_hardware,
)
from autotune.trial.wording import amount

MOST = 10  # runs of one configuration
GIVE_UP = 3.0  # times the first run's seconds, and for the baseline's races times the leader's


def due(trials: Sequence[Trial], target: Target, share: float) -> Trial | None:
    """The trial to race now, or None: the leader, while races have had less than their share.

    The share is of the seconds of all trials; running races and this one count with the time that
    they should take.
    """
    known = with_mean_times(trials, target)
    comparable = [t for t in known if t.hardware == usual_hardware(known)]
    leader, races = to_race(comparable, trials, target), [t for t in trials if t.kind == RACE]
    if (
        leader is None
        or race_outcome(known, trials, target).deterministic
        or config_from_scratch(leader, trials) is None
    ):
        return None
    means = {t.number: t for t in known}
    return leader if affordable(leader, races, means, sum(map(cost, trials)), share) else None


def to_race(known: Sequence[Trial], trials: Sequence[Trial], target: Target) -> Trial | None:
    """The trial whose next run should be the best, once the baseline has some runs, if it is timed.

    Args:
        known: searched trials by the means of their runs, on the hardware that most trials ran on.
        trials: those that succeeded or were run again, and the repeats.
    """
    done = [t for t in known if t.succeeded]
    if not target.timed:
        return min(done, key=target.order, default=None)
    expected = expected_seconds(trials, repeats_by_trial(trials), target)
    fastest = _fastest(done, expected, target)
    if fastest is None:
        return None

    def validated(trial: Trial) -> bool:
        return 1 + len(_own_races(trial, trials)) >= VALIDATED

    baseline = next((t for t in done if t.kind == "baseline"), fastest)
    if len(done) > 1 and baseline.seconds < GIVE_UP * fastest.seconds and not validated(baseline):
        return baseline
    if not validated(fastest):
        return fastest
    # What may miss the target is expected to take long where the limit is far: however fast it was,
    # it would never be run again, and never be shown to miss nothing.
    faster = [t for t in done if t.seconds < expected[fastest.number] and not validated(t)]
    return min(faster, key=target.order, default=fastest)


def _fastest(done: Sequence[Trial], expected: Mapping[int, float], target: Target) -> Trial | None:
    """The trial of which one more run should take least, by the seconds that each should take."""
    return min(done, key=lambda t: (expected[t.number], target.order(t)), default=None)


def affordable(
    leader: Trial, races: Sequence[Trial], means: Mapping[int, Trial], spent: int, share: float
) -> bool:
    """Whether the leader may be raced now: fewer than `MOST` runs, and within the share of races.

    `races` are all so far, `means` the searched trials with the means of their runs, and `spent`
    the microseconds of all trials.
    """
    if 1 + len(_own_races(leader, races)) >= MOST:
        return False
    raced = 0
    for race in races:
        assert race.repeats is not None
        least = 0 if race.ended else micro(means[race.repeats].seconds)
        raced += max(cost(race), least)
    return raced + micro(leader.seconds) <= share * spent


def _own_races(trial: Trial, trials: Sequence[Trial]) -> list[Trial]:
    """The races of this configuration, with those that still run."""
    own = [t for t in trials if t.kind == RACE and t.repeats == trial.number]
    return [t for t in own if t.reason not in INTERRUPTED_REASONS]


def micro(seconds: float) -> int:
    """Microseconds: whole numbers have the same sum in whatever order they are added."""
    return round(1e6 * seconds)


def cost(trial: Trial) -> int:
    """Microseconds on the target's clock that were trained for this trial alone."""
    return micro(trial.seconds - trial.inherited_seconds)


def given_up(race: Trial, first: Trial, target: Target) -> Stop | None:
    """Why a race ends before the target's limit: it has taken so long that it counts as a miss.

    A run that takes several times as long as the one that it repeats mostly never reaches the
    target (its schedule has ended), and to wait for the limit would use up the share of races. It
    is the bound of ParamILS on a single run (Hutter et al. 2009). Times are compared on the same
    hardware only, and a first run that took no time says nothing.

    Args:
        race: a running repeat.
        first: the trial that it repeats; both without the seconds in which they waited.
    """
    if race.kind != RACE or not target.timed or first.state is not State.REACHED:
        return None
    if race.hardware != first.hardware or not 0 < GIVE_UP * first.seconds <= race.seconds:
        return None
    took = amount(target, first.seconds)
    return Stop("capped", f"{GIVE_UP:g} times the {took} of trial {first.number}")


def for_pruning(trials: Sequence[Trial], target: Target) -> tuple[Trial, ...]:
    """The searched trials as pruners and controllers see them.

    One that was faster than the best of those that have been run again is on average counts as no
    faster than that, as it may have been lucky. Where times do not vary it counts as it was.
    """
    known = with_mean_times(trials, target)
    outcome = race_outcome(known, trials, target)
    seen = disturbed.as_pruners_see(known, trials, target)
    return tuple(limited(t, outcome) for t in seen)


@dataclass(frozen=True)
class RaceOutcome:
    """The results of repeats during the search.

    Args:
        fastest: for each kind of hardware the trial that has been run again of which the next run
            should be the fastest (`expected`), with the mean time of its runs.
        deterministic: whether each of at least three repeats had the result of the first run.
    """

    fastest: Mapping[Hardware | None, Trial]
    deterministic: bool


NO_RACES = RaceOutcome({}, deterministic=False)


def race_outcome(known: Sequence[Trial], trials: Sequence[Trial], target: Target) -> RaceOutcome:
    """The results of the repeats in `trials`; `known` are the searched trials by their means."""
    runs = repeats_by_trial(trials)
    raced = runs.keys() - disturbed.only_disturbed(trials, target).keys()
    fastest: dict[Hardware | None, Trial] = {}
    if target.timed:
        again = [t for t in trials if t.number in runs]  # what others took changes nothing
        expected = expected_seconds(again, runs, target)
        rerun = [t for t in known if t.number in raced and t.succeeded]
        for hardware in {t.hardware for t in rerun}:
            own = [t for t in rerun if t.hardware == hardware]
            if (trial := _fastest(own, expected, target)) is not None:
                fastest[hardware] = trial
    return RaceOutcome(fastest, deterministic=never_vary(trials, runs, target))


def limited(trial: Trial, outcome: RaceOutcome) -> Trial:
    """The trial, no faster than the fastest of those that were run again."""
    fastest = outcome.fastest.get(trial.hardware)
    if fastest is None or outcome.deterministic or trial.state is not State.REACHED:
        return trial
    return replace(trial, seconds=fastest.seconds) if trial.seconds < fastest.seconds else trial
