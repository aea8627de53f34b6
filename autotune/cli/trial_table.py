"""A table of trials for a terminal: what a trial came to is never cut, its configuration is."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.algorithms.ranking.best import Ranked
from autotune.algorithms.ranking.repeats import PROBE, probes
from autotune.cli.columns import END, Column, table
from autotune.cli.screen import Screen
from autotune.study.display.trial_text import COLOURS, configuration, name_of, number
from autotune.trial import State, Target, Trial
from autotune.trial.wording import amount, disturbed_note, metric_name, result_name, so_far

_NAMED = (State.RUNNING, State.FAILED, State.INFEASIBLE)  # whose reason does not say the state


def print_trials(screen: Screen, entries: Sequence[Ranked], target: Target, more: str = "") -> None:
    """The trials in this order, each in one line or two, coloured by state on a terminal.

    Args:
        more: a line above the head.
    """
    columns = (
        Column("rank", right=True),
        Column("trial"),
        Column(result_name(target), right=True),
        Column("spent", right=True),
        Column(metric_name(target) if target.timed else "after", right=True),
        Column("reason", cut=END),
        Column("configuration"),
    )
    probed = probes(entry.trial for entry in entries)
    head, *rows = table(columns, [_cells(e, target, probed) for e in entries], screen.width)
    screen.lines([*([more] if more else []), *head])
    for entry, lines in zip(entries, rows, strict=True):
        screen.lines(lines, COLOURS[entry.trial.state])


def _cells(entry: Ranked, target: Target, probed: Sequence[Trial]) -> list[str]:
    trial = entry.trial
    return [
        str(entry.rank or "-"),
        name_of(trial),
        so_far(trial, target) if trial.kind != PROBE else "-",  # it is no result
        f"{trial.spent_seconds:.1f} s",
        number(target.best(trial)) if target.timed else _after(trial, target),
        _reason(trial),
        configuration(trial, probed if trial.kind == PROBE else ()),
    ]


def _after(trial: Trial, target: Target) -> str:
    """When the metric that counts was reported."""
    report = target.counted(trial)
    return amount(target, report.seconds) if report is not None else "-"


def _reason(trial: Trial) -> str:
    state = trial.state.lower() if trial.state in _NAMED else ""
    own = ": ".join(filter(None, (state, trial.reason)))
    return ", ".join(filter(None, (own, disturbed_note(trial))))
