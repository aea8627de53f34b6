"""Repeats: configurations that are run again on fresh seeds, against the winner's curse.

The fastest of many trials owes part of its time to its seed; run again, it is slower. Two kinds of
trials measure by how much. A **race** runs during the search, beside other trials, and helps to
decide which trial leads. A **confirmation** runs after the search, alone on the hardware, and does
not affect which trials are confirmed: only its time may be quoted. Everything here is a function of
the trials; which trial is best is defined in `best`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median_high

from autotune.algorithms.ranking.lineage import as_one, descent
from autotune.algorithms.ranking.speedup import Timed
from autotune.trial import (
    INTERRUPTED_REASONS,
    Config,
    State,
    Target,
    Trial,
    undisturbed,
    usual_hardware,
)

CONFIRM, RACE = "confirm", "race"
VALIDATED = 3
"""Runs of one configuration whose mean is taken as its time, without a correction for luck."""


def searched(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that are no repeats: those that a study's number of trials counts."""
    return [t for t in trials if t.repeats is None]


def confirming(trials: Sequence[Trial]) -> list[Trial]:
    """The confirmations of searched trials; the trials of a replay are none."""
    return [t for t in trials if t.kind == CONFIRM and t.repeats is not None]


def unconfirmed(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of the search, races included."""
    return [t for t in trials if t.kind != CONFIRM or t.repeats is None]


def with_mean_times(trials: Sequence[Trial], target: Target) -> tuple[Trial, ...]:
    """The searched trials, the `seconds` of each being the mean time of its runs.

    The mean is restricted, as that of confirmations: a run that missed the target counts as the
    limit. (The median would often hide that a configuration misses the target with every other
    seed.) Repeats that are running, were interrupted or failed do not count, nor do those on other
    hardware. A disturbed run counts only where no other has ended, and then without the seconds in
    which it waited. Trials that neither have repeats nor were disturbed are the same objects.
    """
    return means_of_runs(trials, repeats_by_trial(trials), target.limit)


def means_of_runs(
    trials: Sequence[Trial], runs: Mapping[int, list[Trial]], limit: float
) -> tuple[Trial, ...]:
    """`with_mean_times`, of trials whose repeats are given in `runs`."""
    return tuple(
        _mean([t, *runs[t.number]], limit) if t.number in runs and timed(t) else undisturbed(t)
        for t in searched(trials)
    )


def repeats_by_trial(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    """The repeats that count, by the trial that they repeat: on the same hardware as it."""
    own = {t.number: t.hardware for t in trials}
    runs: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.repeats is None or not timed(trial):
            continue
        if trial.hardware == own.get(trial.repeats):
            runs.setdefault(trial.repeats, []).append(trial)
    return runs


def timed(trial: Trial) -> bool:
    """Whether a run has ended with a time that counts for its configuration.

    A run that failed, for example because a worker died or memory ran out, has none.
    """
    ended = trial.state in (State.REACHED, State.CENSORED)
    return ended and trial.reason not in INTERRUPTED_REASONS


def _mean(runs: Sequence[Trial], limit: float) -> Trial:
    """The first of the runs, with the mean time of all; unchanged where all missed the target."""
    first = runs[0]
    runs = alone(runs)
    own = runs[0] if runs[0] is first else _measured(first, runs[0])
    reached = next((t for t in runs if t.state is State.REACHED), None)
    if reached is None:
        return own
    seconds = fmean(t.seconds if t.state is State.REACHED else limit for t in runs)
    return replace(own, state=reached.state, reason=reached.reason, seconds=seconds)


def alone(runs: Sequence[Trial]) -> list[Trial]:
    """The runs of a configuration that count: those that nothing disturbed.

    If all were disturbed, all of them, without the seconds in which they waited.
    """
    return [t for t in runs if not t.disturbed] or [undisturbed(t) for t in runs]


def _measured(trial: Trial, run: Trial) -> Trial:
    """A disturbed trial with the outcome of another run of its configuration."""
    return replace(
        trial, state=run.state, reason=run.reason, seconds=run.seconds, reports=run.reports
    )


def config_from_scratch(trial: Trial, trials: Sequence[Trial]) -> Config | None:
    """The configuration that trains the trial again from scratch.

    A fork's is its whole line of descent; None if that cannot be written as one configuration.
    """
    if trial.origin is None:
        return trial.config
    try:
        return as_one(descent(trial, trials))
    except ValueError:
        return None


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Confirmation:
    """The runs of one configuration on fresh seeds; all times in seconds.

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
    def timed_runs(self) -> tuple[Timed, ...]:
        """The runs for a speedup: one that missed the target exceeds the limit."""
        pairs = zip(self.runs, self.times, strict=True)
        return tuple(Timed(time, t.state is State.REACHED, t.seed) for t, time in pairs)

    @property
    def median_seconds(self) -> float | None:
        """The median time to target; None if half of the runs or more missed it."""
        high = median_high(self.times)
        if high >= self.limit:
            return None
        order = sorted(self.times)
        return (order[(len(order) - 1) // 2] + high) / 2


def confirmations(trials: Sequence[Trial], target: Target) -> tuple[Confirmation, ...]:
    """The confirmed configurations, the best first: by the mean time over their common rounds.

    Only runs on the hardware that most confirmations ran on count; those that failed are left out.
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
    """The runs of a trial's configuration in the search, its first one included.

    None unless it was run again. As the first run may owe its time to luck, this is not a time to
    quote.
    """
    runs = repeats_by_trial(unconfirmed(trials)).get(trial.number)
    if runs is None or not timed(trial):
        return None
    everyone = (trial, *runs)
    counted = tuple(t for t in everyone if not t.disturbed) or everyone
    return Confirmation(trial.number, trial.time_to_target, counted, target.limit)
