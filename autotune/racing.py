"""Racing: while a study searches, its leader is run again on fresh seeds, to see whether it leads.

A share of the seconds that the study trains goes into races. It is the leader that is raced, by the
median of its runs: one that was merely lucky falls back, and the next one is raced in its place; so
a challenger is run again only if it was faster than the incumbent is known to be (the
intensification of ROAR and SMAC, Hutter et al. 2011). The incumbent that caps others is one that
has been run again. Where every run takes as long as the first, there is no luck and no more races.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_high

from autotune.repeats import RACE, again, merged, timed
from autotune.trial import CUT, Hardware, State, Target, Trial, incumbent, leader

MOST = 5  # runs of one configuration
SHARE = 0.2  # of the seconds trained that go into races, where nobody says otherwise
_TELLING = 3  # runs again that tell how much luck there is
_EXACT = 0.01  # of the first run's time: no luck


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

    `races` are all so far, `stands` the searched trials by the medians of their runs, and `spent`
    the microseconds of all trials.
    """
    own = [t for t in races if t.repeats == best.number and t.reason not in CUT]
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


def runs(trials: Sequence[Trial]) -> Counter[int]:
    """How often each searched trial's configuration has been run, with those that still run."""
    counted = (t for t in trials if t.reason not in CUT)
    return Counter(t.number if t.repeats is None else t.repeats for t in counted)


def proven(trials: Sequence[Trial], target: Target) -> tuple[Trial, ...]:
    """The searched trials as those are shown them that stop others.

    One that was faster than the best of those that have been run again may have been lucky: it is
    taken to be as fast as that or, where races have shown how much luck there is, as it may be
    expected to be.
    """
    known = merged(trials, target)
    proof = proof_of(known, trials)
    return tuple(held(t, proof) for t in known)


@dataclass(frozen=True)
class Proof:
    """What the runs of leaders again have shown.

    Args:
        bests: on each kind of hardware the fastest that has been run again, by its median.
        luck: how many times the leader's own time its runs again take, at the median; at least 1,
            infinite where too few have ended, or most missed the target.
        certain: whether every run took as long as the first one.
    """

    bests: Mapping[Hardware | None, Trial]
    luck: float
    certain: bool


NOTHING = Proof({}, math.inf, False)


def proof_of(known: Sequence[Trial], trials: Sequence[Trial]) -> Proof:
    """What repeats have shown of the searched trials, which are `known` by their medians."""
    own = {t.number: t for t in trials}
    ends = [t for t in trials if t.repeats is not None and t.ended]
    ends = [t for t in ends if t.repeats is not None and t.hardware == own[t.repeats].hardware]
    again = {t.repeats for t in ends}
    rerun = [t for t in known if t.number in again]
    bests = ((like, incumbent(rerun, like)) for like in {t.hardware for t in rerun})
    ratios = [_ratio(t, own[t.repeats]) for t in ends if t.repeats is not None and timed(t)]
    enough = len(ratios) >= _TELLING
    luck = max(median_high(ratios), 1.0) if enough else math.inf
    certain = enough and all(abs(ratio - 1) <= _EXACT for ratio in ratios)
    return Proof({like: best for like, best in bests if best is not None}, luck, certain)


def _ratio(race: Trial, first: Trial) -> float:
    reached = race.state is State.REACHED and first.seconds > 0
    return race.seconds / first.seconds if reached else math.inf


def held(trial: Trial, proof: Proof) -> Trial:
    """A trial, no faster than the best of those that were run again; none of these is."""
    best = proof.bests.get(trial.hardware)
    if best is None or trial.state is not State.REACHED or trial.seconds >= best.seconds:
        return trial
    if math.isinf(proof.luck):
        return replace(trial, seconds=best.seconds)
    expected = trial.seconds if proof.certain else trial.seconds * proof.luck
    return replace(trial, seconds=min(expected, best.seconds))
