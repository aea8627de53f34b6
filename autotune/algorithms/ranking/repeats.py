"""Configurations that are run again on fresh seeds, because the winners of a search are lucky.

The fastest of many trials is one on which the seed was kind; run again, it is slower. Two kinds of
trials say by how much. A **race** runs while the study searches, beside other trials, and helps to
tell who leads. A **confirmation** runs when the search is over, alone on the hardware, and has a
part in no choice of who is confirmed: only its time may be quoted. Everything here is a function of
the trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median_high

from autotune.algorithms.ranking.lineage import as_one, descent
from autotune.trial import INTERRUPTED_REASONS, Config, State, Target, Trial, usual_hardware

CONFIRM, RACE = "confirm", "race"
PROVEN = 3  # runs of one configuration that tell its time


def searched(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that are no repeats: those that a study's number of trials counts."""
    return [t for t in trials if t.repeats is None]


def confirming(trials: Sequence[Trial]) -> list[Trial]:
    """The confirmations of searched trials; the trials of a replay are none."""
    return [t for t in trials if t.kind == CONFIRM and t.repeats is not None]


def unconfirmed(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of the search, races included."""
    return [t for t in trials if t.kind != CONFIRM or t.repeats is None]


def merged(trials: Sequence[Trial], target: Target) -> tuple[Trial, ...]:
    """The searched trials, each standing by the mean time of its runs.

    The mean is restricted, as that of confirmations: a run that missed the target counts as the
    limit. By a median one that misses the target with every other seed would often stand as if it
    never did. Repeats that still run, were cut off or failed do not count, nor do those on other
    hardware. Trials without repeats are the same objects as before.
    """
    return _standing(trials, _runs_again(trials), target.limit)


def _standing(
    trials: Sequence[Trial], runs: Mapping[int, list[Trial]], limit: float
) -> tuple[Trial, ...]:
    """`merged`, of trials whose `runs` again are known."""
    return tuple(
        _mean([t, *runs[t.number]], limit) if t.number in runs and timed(t) else t
        for t in searched(trials)
    )


def _runs_again(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    """The repeats that say something, by the trial that they repeat, on the same hardware as it."""
    own = {t.number: t.hardware for t in trials}
    runs: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.repeats is None or not timed(trial):
            continue
        if trial.hardware == own.get(trial.repeats):
            runs.setdefault(trial.repeats, []).append(trial)
    return runs


def timed(trial: Trial) -> bool:
    """Whether a run has ended and says something of its configuration's time.

    A worker that died for good, or memory that ran out, says nothing of it.
    """
    ended = trial.state in (State.REACHED, State.CENSORED)
    return ended and trial.reason not in INTERRUPTED_REASONS


def _mean(runs: Sequence[Trial], limit: float) -> Trial:
    """The first of the runs, with the mean time of them all; as it was where all of them missed."""
    own = runs[0]
    reached = next((t for t in runs if t.state is State.REACHED), None)
    if reached is None:
        return own
    seconds = fmean(t.seconds if t.state is State.REACHED else limit for t in runs)
    return replace(own, state=reached.state, reason=reached.reason, seconds=seconds)


def standings(trials: Sequence[Trial], target: Target) -> list[Trial]:
    """The searched trials that reached the target, by the time that one more run should take.

    For one that has been run `PROVEN` times that is their mean. Another one may have been lucky:
    it is taken to be as much slower as the proven ones turned out to be, by the median of that.
    Without races they stand by their own times. Only those on the hardware that most trials ran on
    are told; confirmations have no part in it.
    """
    asked = unconfirmed(trials)
    runs = _runs_again(asked)
    known = _standing(asked, runs, target.limit)
    proven = {number for number, own in runs.items() if 1 + len(own) >= PROVEN}
    first = {t.number: t for t in searched(asked)}
    slower = [
        t.seconds / first[t.number].seconds
        for t in known
        if t.number in proven and first[t.number].state is State.REACHED and first[t.number].seconds
    ]
    luck = max(1.0, median_high(slower)) if slower else 1.0
    usual = usual_hardware(known)
    reached = [t for t in known if t.state is State.REACHED and t.hardware == usual]

    def order(trial: Trial) -> tuple[float, float, int]:
        expected = trial.seconds if trial.number in proven else luck * trial.seconds
        return expected, trial.seconds, trial.number

    return sorted(reached, key=order)


def winner(trials: Sequence[Trial], target: Target) -> Trial | None:
    """The best trial of a study: by confirmed time, if anything is confirmed, else by its standing.

    Without repeats that is the fastest on the hardware that most trials ran on.
    """
    by_number = {t.number: t for t in trials}
    proven = (c.number for c in confirmations(trials, target))
    found = next((n for n in proven if by_number[n].state is State.REACHED), None)
    if found is None:
        best = next(iter(standings(trials, target)), None)
        found = best.number if best is not None else None
    return by_number[found] if found is not None else None


def again(trial: Trial, trials: Sequence[Trial]) -> Config | None:
    """The configuration that trains the trial again from scratch.

    A fork's is its whole line of descent; None if that is no one configuration.
    """
    if trial.origin is None:
        return trial.config
    try:
        return as_one(descent(trial, trials))
    except ValueError:
        return None


# --- what came of it ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Confirmation:
    """What the runs of one configuration on fresh seeds say; all times in seconds.

    Args:
        number: the trial that they repeat.
        tuning_seconds: its time to target in the search, None if it missed the target.
        runs: the confirmations that have ended, in the order of their rounds.
        limit: the target's.
    """

    number: int
    tuning_seconds: float | None
    runs: tuple[Trial, ...] = field(repr=False)
    limit: float

    @property
    def reached(self) -> int:
        """How many of the runs reached the target."""
        return sum(t.state is State.REACHED for t in self.runs)

    @property
    def times(self) -> tuple[float, ...]:
        """Each run's time to target; the limit for one that missed it."""
        return tuple(t.seconds if t.state is State.REACHED else self.limit for t in self.runs)

    @property
    def mean_seconds(self) -> float:
        """The mean time to target, restricted: a run that missed it counts as the limit."""
        return fmean(self.times)

    @property
    def geometric_seconds(self) -> float:
        """The geometric mean of the times to target, restricted as `mean_seconds` is."""
        return math.exp(fmean(math.log(max(t, 1e-9)) for t in self.times))

    @property
    def median_seconds(self) -> float | None:
        """The median time to target; None if too few runs reached it to say."""
        high = median_high(self.times)
        if high >= self.limit:
            return None
        order = sorted(self.times)
        return (order[(len(order) - 1) // 2] + high) / 2


def confirmations(trials: Sequence[Trial], target: Target) -> tuple[Confirmation, ...]:
    """What is confirmed, the best first: by the mean time over the rounds that all of them have.

    Only runs on the hardware that most confirmations ran on are compared; those that failed are
    left out.
    """
    ended = [t for t in confirming(trials) if timed(t)]
    usual = usual_hardware(ended)
    runs: dict[int, list[Trial]] = {}
    for trial in sorted(ended, key=lambda t: t.number):
        if trial.hardware == usual and trial.repeats is not None:
            runs.setdefault(trial.repeats, []).append(trial)
    own = {t.number: t.time_to_target for t in trials}
    found = [Confirmation(n, own[n], tuple(r), target.limit) for n, r in runs.items()]
    rounds = min((len(c.runs) for c in found), default=0)

    def order(one: Confirmation) -> tuple[float, float, int]:
        tuned = one.tuning_seconds if one.tuning_seconds is not None else target.limit
        return fmean(one.times[:rounds]), tuned, one.number

    return tuple(sorted(found, key=order))


def raced(trial: Trial, trials: Sequence[Trial], target: Target) -> Confirmation | None:
    """What the search's own runs of a trial's configuration say, its first one among them.

    None unless it was run again. The first one may have been chosen for its luck: no time to quote.
    """
    runs = _runs_again(unconfirmed(trials)).get(trial.number)
    if runs is None or not timed(trial):
        return None
    return Confirmation(trial.number, trial.time_to_target, (trial, *runs), target.limit)


def confirmed_speedup(trials: Sequence[Trial], target: Target) -> float | None:
    """The baseline's confirmed time over the best one's, geometric means; None unless both are.

    Of runs with the same seeds, where both have such. A run that missed the target counts as the
    limit, so that it is too small where the baseline's missed it, too large where the best one's.
    """
    found = {c.number: c for c in confirmations(trials, target)}
    best = winner(trials, target)
    baseline = next((t for t in trials if t.kind == "baseline"), None)
    if best is None or baseline is None or not {best.number, baseline.number} <= found.keys():
        return None
    won, base = found[best.number], found[baseline.number]
    seeds = {t.seed for t in won.runs} & {t.seed for t in base.runs}
    if len(seeds) >= max(2, min(len(won.runs), len(base.runs))):  # as comparisons pair them
        won, base = (
            replace(one, runs=tuple(t for t in one.runs if t.seed in seeds)) for one in (won, base)
        )
    return base.geometric_seconds / won.geometric_seconds if won.reached else None
