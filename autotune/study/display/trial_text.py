"""A trial in a table: its name, its configuration on one line, numbers in few digits."""

from __future__ import annotations

from typing import Any

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


def name_of(trial: Trial) -> str:
    """A trial's number, with its kind and its parent where it has them."""
    if trial.origin is not None:
        return f"{trial.number} from trial {trial.origin.parent}"
    of = f" of {trial.repeats}" if trial.repeats is not None else ""
    return f"{trial.number}" if trial.kind == "trial" else f"{trial.number} {trial.kind}{of}"


def configuration(trial: Trial) -> str:
    """The searched part of the trial's configuration on one line; all of it if it was given.

    For a repeat, the trial that it repeats and its seed.

    >>> from autotune.schedules import Cosine
    >>> configuration(Trial(0, {"lr": Cosine(0.4, 0.0), "data": "digits"}, {"lr.peak": 0.4}))
    'lr=cosine 0.4 -> 0'
    """
    if trial.repeats is not None:
        return f"trial {trial.repeats} again, seed {trial.seed}"
    point = trial.point
    names = trial.config if point is None else {n.partition(".")[0] for n in point}
    values = {name: trial.config[name] for name in trial.config if name in names}
    return plain_text("  ".join(f"{k}={number(plain(v))}" for k, v in values.items()))


def number(value: Any) -> str:
    """A value in few digits; a dash for none."""
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
