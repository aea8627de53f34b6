"""Repeats: configurations that are run again on fresh seeds, against the winner's curse.

The fastest of many trials owes part of its time to its seed; run again, it is slower. Two kinds of
trials measure by how much. A **race** runs during the search, beside other trials, and helps to
decide which trial leads. A **confirmation** runs after the search, alone on the hardware, and does
not affect which trials are confirmed: only its time may be quoted. Everything here is a function of
the trials; which trial is best is defined in `best`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from autotune.algorithms.ranking.lineage import as_one, descent
from autotune.trial import (
    INTERRUPTED_REASONS,
    Config,
    State,
    Target,
    Trial,
    is_spoilt,
    undisturbed,
    usual_hardware,
)
from autotune.trial.limit import broke_limit

CONFIRM, RACE, PROBE = "confirm", "race", "probe"
VALIDATED = 3
"""Runs of one configuration whose mean is taken as its time, without a correction for luck."""


def is_searched(trial: Trial) -> bool:
    """Whether a trial is no repeat and no probe: a study's number counts it."""
    return trial.repeats is None and trial.kind != PROBE


def searched(trials: Iterable[Trial]) -> list[Trial]:
    """The trials that a study's number counts."""
    return [t for t in trials if is_searched(t)]


def probes(trials: Iterable[Trial]) -> list[Trial]:
    """The trials that only measure seconds per sample (`algorithms.plans`), by number."""
    return sorted((t for t in trials if t.kind == PROBE), key=lambda t: t.number)


def all_failed(trials: Iterable[Trial]) -> bool:
    """Whether there are trials, and each of them has FAILED, whatever probes did."""
    compared = [t for t in trials if t.kind != PROBE]
    return bool(compared) and all(t.state is State.FAILED for t in compared)


def confirming(trials: Sequence[Trial]) -> list[Trial]:
    """The confirmations of searched trials; the trials of a replay are none."""
    return [t for t in trials if t.kind == CONFIRM and t.repeats is not None]


def unconfirmed(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of the search, races included."""
    return [t for t in trials if t.kind != PROBE and (t.kind != CONFIRM or t.repeats is None)]


def with_mean_times(trials: Sequence[Trial], target: Target) -> tuple[Trial, ...]:
    """The searched trials, each with the mean result of its runs: the mean time as its `seconds`.

    Without a value of the target it is the mean metric, as its `mean_result`.

    The mean is restricted, as that of confirmations: a run that missed the target counts as the
    limit, and without a value one that diverged with the metric that it had. (The median would
    often hide that a configuration misses the target with every other seed.) Repeats that are
    running, were interrupted or failed do not count, nor do those on other hardware. A disturbed
    run counts only where no other has ended, and then without the seconds in which it waited.
    Trials that neither have repeats nor were disturbed are the same objects.
    """
    return means_of_runs(trials, repeats_by_trial(trials), target)


def race_leader(trials: Sequence[Trial], target: Target) -> Trial | None:
    """The trial to race: the best by its result on the hardware that most trials ran on."""
    usual = usual_hardware(trials)
    done = [t for t in trials if t.succeeded and t.hardware == usual]
    return min(done, key=target.order, default=None)


def means_of_runs(
    trials: Sequence[Trial], runs: Mapping[int, list[Trial]], target: Target
) -> tuple[Trial, ...]:
    """`with_mean_times`, of trials whose repeats are given in `runs`."""
    return tuple(
        _mean([t, *runs[t.number]], target) if t.number in runs and timed(t) else undisturbed(t)
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
    """Whether a run has ended with a result that counts for its configuration.

    A run that failed, for example because a worker died or memory ran out, has none. A repeat
    that broke a limit counts like one that missed the target.
    """
    ended = trial.succeeded or missed(trial).state is State.CENSORED
    return ended and trial.reason not in INTERRUPTED_REASONS


def missed(run: Trial) -> Trial:
    """A repeat that broke a limit as one that missed the target; any other run as it is."""
    broke = run.kind in (CONFIRM, RACE) and broke_limit(run)
    return replace(run, state=State.CENSORED) if broke else run


def _mean(runs: Sequence[Trial], target: Target) -> Trial:
    """The first of the runs, with the mean result of all; unchanged where none succeeded."""
    first = runs[0]
    runs = alone(runs, target)
    own = runs[0] if runs[0] is first else _measured(first, runs[0])
    done = next((t for t in runs if t.succeeded), None)
    if done is None:
        return own
    mean = fmean(result_of_run(t, target) for t in runs)
    made = replace(own, state=done.state, reason=done.reason)
    return replace(made, seconds=mean) if target.timed else replace(made, mean_result=mean)


def result_of_run(run: Trial, target: Target) -> float:
    """The result of a run for a mean: the limit of one that missed the target."""
    result = target.result(run)
    if result is not None:
        return result
    score = target.horizon if target.timed else target.score(missed(run))
    return math.inf if score is None else score


def alone(runs: Sequence[Trial], target: Target) -> list[Trial]:
    """The runs of a configuration that count: those whose result nothing has spoilt.

    If all were spoilt, all of them, without the seconds in which they waited.
    """
    return [t for t in runs if not is_spoilt(t, target)] or [undisturbed(t) for t in runs]


def as_ranked(trial: Trial, trials: Sequence[Trial], target: Target) -> Trial:
    """A trial with the mean result of its runs in the search: see `with_mean_times`.

    By it an unconfirmed trial is ranked, and compared with the baseline.
    """
    again = repeats_by_trial(unconfirmed(trials)).get(trial.number, [])
    return _mean([trial, *again], target) if again and timed(trial) else undisturbed(trial)


def _measured(trial: Trial, run: Trial) -> Trial:
    """A disturbed trial with the outcome of another run of its configuration."""
    return replace(
        trial, state=run.state, reason=run.reason, seconds=run.seconds, reports=run.reports
    )


def config_from_scratch(trial: Trial, trials: Sequence[Trial]) -> Config | None:
    """The configuration that trains the trial again from scratch.

    A fork's is its whole line of descent; None if that cannot be written as one configuration.
    """
    if not trial.is_fork:
        return trial.config
    try:
        return as_one(descent(trial, trials))
    except ValueError:
        return None
