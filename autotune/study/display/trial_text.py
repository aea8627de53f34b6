"""A trial in a table: its name, its configuration on one line, numbers in few digits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autotune.algorithms.plans.words import probed_plan
from autotune.algorithms.ranking.repeats import PROBE, RACE
from autotune.space.variants import searched_keys
from autotune.study.rows import plain
from autotune.trial import State, Trial
from autotune.trial.plain_text import plain_text

COLOURS = {
    State.REACHED: "green",
    State.COMPLETED: "green",
    State.CENSORED: "yellow",
    State.FAILED: "red",
    State.INFEASIBLE: "magenta",
    State.RUNNING: "cyan",
}


def runs_disturbed_again(trial: Trial, trials: Iterable[Trial]) -> bool:
    """Whether a repeat is that of a disturbed trial, and no race of a leader.

    >>> from autotune.trial import Clock, Report
    >>> waited = Report(10, 8.0, {}, Clock(train=8.0), waited=3.0)
    >>> slow = Trial(3, {}, reports=(waited,), seconds=8.0)
    >>> races = [Trial(n, {}, kind="race", repeats=3) for n in (6, 7)]
    >>> [runs_disturbed_again(race, [slow, *races]) for race in races]
    [True, False]
    """
    if trial.kind != RACE or trial.repeats is None:
        return False
    every = list(trials)
    first = min(t.number for t in every if t.kind == RACE and t.repeats == trial.repeats)
    own = (t for t in every if t.number == trial.repeats)
    return trial.number == first and any(t.disturbed for t in own)


def name_of(trial: Trial, trials: Iterable[Trial] = ()) -> str:
    """A trial's number, with its kind and its parent where it has them.

    Args:
        trials: those of the study, where a repeat of a disturbed one is to be named so.
    """
    if trials and runs_disturbed_again(trial, trials):
        return f"{trial.number} repeat of {trial.repeats}"
    if trial.origin is not None:
        return f"{trial.number} from trial {trial.origin.parent}"
    of = f" of {trial.repeats}" if trial.repeats is not None else ""
    return f"{trial.number}" if trial.kind == "trial" else f"{trial.number} {trial.kind}{of}"


def configuration(trial: Trial, trials: Iterable[Trial] = ()) -> str:
    """The searched part of the trial's configuration on one line; all of it if it was given.

    For a repeat, the trial that it repeats and its seed; for a probe what it changes of the default
    plan, where `trials` are given.

    >>> from autotune.schedules import Cosine
    >>> configuration(Trial(0, {"lr": Cosine(0.4, 0.0), "data": "digits"}, {"lr.peak": 0.4}))
    'lr=cosine 0.4 -> 0'
    """
    if trial.repeats is not None:
        if trials and runs_disturbed_again(trial, trials):
            return f"again, as trial {trial.repeats} was disturbed, seed {trial.seed}"
        return f"trial {trial.repeats} again, seed {trial.seed}"
    if trial.kind == PROBE and trials:
        return probed_plan(trial, trials)
    point = trial.point
    names = trial.config if point is None else searched_keys(point)
    values = {name: trial.config[name] for name in trial.config if name in names}
    return plain_text("  ".join(f"{k}={number(plain(v))}" for k, v in values.items()))


def number(value: Any) -> str:
    """A value in few digits; a dash for none."""
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
