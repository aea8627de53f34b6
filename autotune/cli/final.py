"""What is printed when a study has ended: its best trials, the confirmed ones, and a conclusion.

The best is always the last of a table, next to the conclusion and the prompt.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TextIO

from autotune.algorithms import shared_work
from autotune.algorithms.ranking.confirmation import Confirmation, raced
from autotune.algorithms.ranking.finalists import next_to_confirm
from autotune.cli.columns import Column, table
from autotune.cli.screen import Screen, screen
from autotune.cli.text import gained, ratio
from autotune.cli.trial_table import print_trials
from autotune.evaluation import machine
from autotune.evaluation.summary import (
    confirmation,
    confirmed_text,
    gain,
    lower_bound_mark,
    races_text,
    speedup,
)
from autotune.study import earlier
from autotune.study.experience import keeping
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.trial import INTERRUPTED_REASONS, Target, Trial
from autotune.trial.wording import came_to, disturbed_note, goal, lead, outcome, shown

_MOST = 10  # trials of the final table


def headline(result: StudyResult, manifest: Manifest) -> str:
    """The study's name, what it is about, and its limits."""
    return "; ".join([f"{manifest.name}: {goal(result.target)}", *map(str, manifest.limits)])


def print_result(result: StudyResult, manifest: Manifest, out: TextIO) -> None:
    """The best ten trials and the confirmed ones, the conclusion, and how to open MLflow."""
    on = screen(out)
    on.lines([headline(result, manifest)])
    left = len(result.ranking) - _MOST
    more = f"{left} more: autotune trials {shlex.quote(str(result.folder))}" if left > 0 else ""
    print_trials(on, result.ranking[:_MOST][::-1], result.target, more)
    on.lines([""])
    _print_end(result, manifest, on)


def print_confirmed(result: StudyResult, manifest: Manifest, out: TextIO) -> None:
    """The confirmed trials and the conclusion."""
    on = screen(out)
    on.lines([headline(result, manifest)])
    _print_end(result, manifest, on)


def _print_end(result: StudyResult, manifest: Manifest, on: Screen) -> None:
    """The confirmed trials, what follows of all that, and what is left to do."""
    if result.confirmed:
        on.lines(["run again on fresh seeds, each alone"])
        on.lines(_confirmations(result.confirmed[::-1], on.width))
        on.lines([""])
    on.paragraph(conclusion(result))
    for sentence in machine.sentences(result):
        on.paragraph(sentence)
    if saved := shared_work.sentence(result.trials):
        on.paragraph(f"Shared beginnings: {saved}.")
    notes = [_unfinished(result, manifest)]
    uri = manifest.options.tracking_uri
    if uri != "off":
        notes.append(f"MLflow: {uri}" if uri else f"MLflow: autotune ui {result.folder}")
    if file := keeping.file_of(manifest):
        notes.append(keeping.written(file))
    on.lines(note for note in notes if note)


def conclusion(result: StudyResult) -> str:
    """The best trial, or the one that came nearest, and how it compares with the baseline."""
    best, baseline, target = result.best, result.baseline, result.target
    spent = f"{result.spent_seconds:.0f} worker-group seconds spent"
    if best is None:
        none = "No trial reached the target" if target.timed else "No trial completed"
        none += " yet" if result.ended == "running" else ""
        parts = (none, came_to(target, result.nearest), spent)
        return f"{'; '.join(part for part in parts if part)}."
    confirmed = result.confirmation(best)
    text = ", ".join(filter(None, (f"Best: {lead(target, best)}", disturbed_note(best))))
    races = raced(best, result.trials, result.target)
    if confirmed is not None:
        text += f" when it was tuned, {confirmed_text(confirmation(confirmed))}"
    elif races is not None:
        text += f", {races_text(confirmation(races))}"
    if baseline is not None and baseline.number == best.number:
        unbeaten = ", which nothing beat when confirmed" if confirmed is not None else ""
        return f"{text}; it is the baseline{unbeaten}. {spent}."
    if baseline is not None:
        again = result.confirmation(baseline) if confirmed is not None else None
        text += "; baseline: "
        text += confirmed_text(confirmation(again)) if again else outcome(baseline, result.target)
    if result.confirmed_speedup is not None:
        text += f"; {ratio(speedup(result))}"
    elif result.speedup is not None:
        busy = any(t is not None and t.disturbed for t in (best, baseline))
        left_out = "; without what disturbed them" if busy else ""
        text += f"; {result.speedup:.2f}x faster ({result.compared_runs}, not confirmed{left_out})"
    elif not target.timed:
        text += gained(gain(result))
    return f"{text}. {spent}."


def _unfinished(result: StudyResult, manifest: Manifest) -> str:
    """A hint where requested confirmations have not been run; else empty."""
    options = manifest.options
    if result.ended in INTERRUPTED_REASONS:  # the command itself prints how to continue
        return ""
    repeats, top = options.repeats, options.top
    if result.best is None or next_to_confirm(result.trials, result.target, repeats, top) is None:
        return ""
    resume = f"autotune resume {result.folder}"
    how = resume if options.recipe else earlier.go_on(manifest, result.folder, options.trials)
    return f"Not all confirmations have been run; go on with: {how}"


def _confirmations(found: Sequence[Confirmation], width: int) -> list[str]:
    """Results of the search and confirmed ones, side by side."""
    timed = all(one.target.timed for one in found)
    what = ("tuning time", "reached", "times") if timed else ("tuning", "completed", "metrics")
    columns = (
        Column("trial"),
        *(Column(head, right=True) for head in (what[0], "confirmed mean", "median", what[1])),
        Column(what[2]),
    )
    return [line for lines in table(columns, [_row(c) for c in found], width) for line in lines]


def _row(one: Confirmation) -> list[str]:
    target, mark = one.target, lower_bound_mark(one.reached, len(one.runs), "> ")
    return [
        str(one.number),
        shown(target, one.tuned) if one.tuned is not None else "missed",
        f"{mark if target.timed else ''}{shown(target, one.mean)}",
        shown(target, one.median),
        f"{one.reached} of {len(one.runs)}",
        "  ".join(_one_run(t, target) for t in one.runs),
    ]


def _one_run(run: Trial, target: Target) -> str:
    return shown(target, target.result(run)).removesuffix(" s") if run.succeeded else "missed"
