"""Racing: while a study searches, its leader is run again on fresh seeds, to see whether it leads.

A share of the seconds that the study trains goes into races, all of them in the second half of the
search (`driver.repeating`). It is the leader that is raced, by the mean of its runs: one that was
merely lucky falls back, and the next one is raced in its place; so a challenger is run again only
if it was faster than the incumbent is known to be (the intensification of ROAR and SMAC, Hutter et
al. 2011). The incumbent that caps others is one that has been run again. Where every run takes as
long as the first, there is no luck and no more races.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.algorithms.ranking.repeats import RACE, again, merged, timed
from autotune.trial import INTERRUPTED_REASONS, Hardware, State, Target, Trial, incumbent, leader

MOST = 5  # runs of one configuration
_TELLING = 3  # runs again that show whether there is luck
_EXACT = 0.01  # of the first run's time: none


def due(trials: Sequence[Trial], target: Target, share: float) -> Trial | None:
    """The trial to be raced now, or None: the leader, while races have had less than their share.

    Counted are the seconds of all trials, and what the races that run, and this one, will take.
    """
    known = merged(trials, target)
    best, races = leader(known), [t for t in trials if t.kind == RACE]
    if best is None or proof_of(known, trials).certain or again(best, trials) is None:
        return None
    stands = {t.number: t for t in known}
    return best if affordable(best, races, stands, sum(map(cost, trials)), share) else None


def affordable(
    best: Trial, races: Sequence[Trial], stands: Mapping[int, Trial], spent: int, share: float
) -> bool:
    """Whether the leader may be raced now: not too often, and within the share of races.

    `races` are all so far, `stands` the searched trials by the means of their runs, and `spent`
    the microseconds of all trials.
    """
    own = [t for t in races if t.repeats == best.number and t.reason not in INTERRUPTED_REASONS]
    if 1 + len(own) >= MOST:
        return False
    raced = 0
    for race in races:
        assert race.repeats is not None
        least = 0 if race.ended else micro(stands[race.repeats].seconds)
        raced += max(cost(race), least)
    return raced + micro(best.seconds) <= share * spent


def micro(seconds: float) -> int:
    """Microseconds: whole numbers have the same sum in whatever order they are added."""
    return round(1e6 * seconds)


def cost(trial: Trial) -> int:
    """Microseconds on the target's clock that were trained for this trial alone."""
    shared = trial.origin.reports if trial.origin is not None else ()
    return micro(trial.seconds - (shared[-1].seconds if shared else 0.0))


def proven(trials: Sequence[Trial], target: Target) -> tuple[Trial, ...]:
    """The searched trials as those are shown them that stop others.

    One that was faster than the best of those that have been run again is taken to be as fast as
    that: it may have been lucky. Where there is no luck it is as fast as it was.
    """
    known = merged(trials, target)
    proof = proof_of(known, trials)
    return tuple(held(t, proof) for t in known)


@dataclass(frozen=True)
class Proof:
    """What the runs of leaders again have shown.

    Args:
        bests: on each kind of hardware the fastest that has been run again, by its mean.
        certain: whether every run took as long as the first one, three of them at least.
    """

    bests: Mapping[Hardware | None, Trial]
    certain: bool


NOTHING = Proof({}, certain=False)


def proof_of(known: Sequence[Trial], trials: Sequence[Trial]) -> Proof:
    """What repeats have shown of the searched trials, which are `known` by their means."""
    own = {t.number: t for t in trials}
    pairs = [(t, own[t.repeats]) for t in trials if t.repeats is not None and t.ended]
    pairs = [(again, first) for again, first in pairs if again.hardware == first.hardware]
    raced = {first.number for _, first in pairs}
    rerun = [t for t in known if t.number in raced]
    bests = ((like, incumbent(rerun, like)) for like in {t.hardware for t in rerun})
    alike = [_as_long(again, first) for again, first in pairs if timed(again)]
    return Proof(
        {like: best for like, best in bests if best is not None},
        certain=len(alike) >= _TELLING and all(alike),
    )


def _as_long(again: Trial, first: Trial) -> bool:
    away = abs(again.seconds - first.seconds)
    return again.state is State.REACHED and away <= _EXACT * first.seconds


def held(trial: Trial, proof: Proof) -> Trial:
    """A trial, no faster than the best of those that were run again; none of these is."""
    best = proof.bests.get(trial.hardware)
    if best is None or proof.certain or trial.state is not State.REACHED:
        return trial
    return replace(trial, seconds=best.seconds) if trial.seconds < best.seconds else trial
