"""`list`: the studies of a folder; `trials`: the trials of a study."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from autotune.algorithms.ranking.best import Ranked
from autotune.cli.columns import MIDDLE, Column, table
from autotune.cli.console import DONE, study_in
from autotune.cli.final import conclusion, headline
from autotune.cli.screen import screen
from autotune.cli.trial_table import print_trials
from autotune.errors import UserError
from autotune.evaluation import spreadsheet, summary
from autotune.evaluation.studies import Overview, listed
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.study.rows import rows

_UNCUT = 100_000  # columns
_COLUMNS = (
    Column("study", cut=MIDDLE),
    Column("state"),
    Column("trials", right=True),
    Column("when"),
    Column("backend"),
    Column("best"),
)


def studies(folder: Path, as_json: bool) -> int:
    """Print one line for each study of the folder; one that cannot be read has its fault there.

    Raises:
        UserError: the folder cannot be read, or holds no study.
    """
    found = listed(folder)
    if as_json:
        print(json.dumps([one.to_json() for one in found]))
        return DONE
    on = screen(sys.stdout)
    width = on.width if sys.stdout.isatty() else _UNCUT
    for lines in table(_COLUMNS, [_line(one) for one in found], width, lines=1):
        on.lines(lines)
    return DONE


def _line(one: Overview) -> Sequence[str]:
    if one.fault:
        return (one.folder.name, "damaged", "", "", "", one.fault)
    best = one.best.removeprefix("none; ") or "none yet"
    done = f"{one.done}/{one.planned}"
    return (one.folder.name, one.state, done, _when(one.updated), one.backend, best)


def _when(updated: str) -> str:
    """The hour of today, the day of this year, or the whole date, as this machine's clock has it.

    >>> _when("2019-06-15T12:00:00+00:00")
    '2019-06-15'
    """
    then, now = datetime.fromisoformat(updated).astimezone(), datetime.now().astimezone()
    if then.date() == now.date():
        return f"{then:%H:%M}"
    return f"{then:%m-%d}" if then.year == now.year else f"{then:%Y-%m-%d}"


def trials(folder: Path, as_csv: bool, as_json: bool) -> int:
    """Print all trials of the study by their numbers, repeats included.

    Raises:
        UserError: the folder holds no study, or the trials are wanted in two forms.
    """
    if as_csv and as_json:
        raise UserError("--csv and --json exclude each other")
    manifest, result = study_in(folder)
    if as_json:
        print(json.dumps(summary.document(result, manifest.name)["trials"]))
    elif as_csv:
        spreadsheet.write(
            rows(result.trials, result.ranking, result.target, result.limits), sys.stdout
        )
    else:
        _print_trials(result, manifest)
    return DONE


def _print_trials(result: StudyResult, manifest: Manifest) -> None:
    on = screen(sys.stdout)
    on.lines([headline(result, manifest)])
    ranks = {entry.trial.number: entry.rank for entry in result.ranking}
    entries = [Ranked(trial, ranks.get(trial.number)) for trial in result.trials]
    print_trials(on, entries, result.target)
    on.lines([""])
    on.paragraph(conclusion(result))
