"""Trials as flat rows: the columns of `to_frame()`, of `autotune trials --csv` and of notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.algorithms.ranking.best import Ranked
from autotune.algorithms.ranking.confirmation import Confirmation
from autotune.algorithms.ranking.repeats import PROBE
from autotune.space.variants import searched_keys as searched_keys
from autotune.trial import Limit, State, Target, Trial, wording
from autotune.trial.limit import last_values

POINT, CONFIG = "params.", "config."  # what begins the names of searched, and of all, settings


def rows(
    trials: Sequence[Trial],
    ranking: Sequence[Ranked],
    target: Target,
    limits: Sequence[Limit] = (),
) -> list[dict[str, Any]]:
    """One row for each trial, all with the same columns: `row`, and the rank after the kind."""
    ranks = {entry.trial.number: entry.rank for entry in ranking}
    made = [row(trial, target, limits) for trial in trials]
    names = list(dict.fromkeys(name for one in made for name in one))
    flat = [name for name in names if not name.startswith((POINT, CONFIG))]
    flat.insert(2, "rank")
    columns = [*flat, *(n for start in (POINT, CONFIG) for n in names if n.startswith(start))]
    ranked = ({**one, "rank": ranks.get(one["trial"])} for one in made)
    return [{name: one.get(name) for name in columns} for one in ranked]


def row(trial: Trial, target: Target, limits: Sequence[Limit] = ()) -> dict[str, Any]:
    """A trial as one flat row; None for unknown values.

    `result` is the time to target, or the best metric of a trial that completed. The names of
    `Trial.point` begin with `params.`, those of the configuration, whose schedules are text, with
    `config.`. A metric that is limited has its last value.
    """
    censored = trial.state is State.CENSORED and trial.kind != PROBE
    return {
        "trial": trial.number,
        "kind": trial.kind,
        "repeats": trial.repeats,
        "parent": trial.origin.parent if trial.origin is not None else None,
        "parent_step": trial.origin.checkpoint.step if trial.origin is not None else None,
        "state": str(trial.state),
        "reason": trial.reason,
        "result": wording.plain_result(target, target.result(trial)),
        "seconds": trial.seconds,
        "time_to_target_seconds": trial.time_to_target,
        "censored_at_seconds": trial.seconds if censored else None,
        f"best_{target.metric}": target.best(trial),
        **last_values(limits, trial),
        "spent_seconds": trial.spent_seconds,
        "microbatch": trial.microbatch,
        "cpu_share": trial.cpu_share,
        "disturbed": trial.disturbed,
        "seed": trial.seed,
        **{f"{POINT}{k}": plain(v) for k, v in (trial.point or {}).items()},
        **{f"{CONFIG}{k}": plain(v) for k, v in trial.config.items()},
    }


def plain(value: Any) -> Any:
    """A configuration's value for a table: schedules as text."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def html_row(trial: Trial, again: Confirmation | None, target: Target) -> str:
    """A trial with its confirmation as a row of an HTML table."""
    middle = None
    if again is not None:
        middle = again.median if target.timed else again.mean
    chosen = trial.config if trial.point is None else trial.point
    settings = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in chosen.items())
    cells = (
        f"{trial.number}" if trial.kind == "trial" else f"{trial.number} {trial.kind}",
        wording.so_far(trial, target),
        f"{wording.shown(target, middle)} ({again.reached} of {len(again.runs)})"
        if again is not None and middle is not None
        else "",
        str(trial.state),
        trial.reason,
        ", ".join(settings),
    )
    made = "".join(f"<td style='text-align:left'>{html.escape(c)}</td>" for c in cells)
    return f"<tr>{made}</tr>"
