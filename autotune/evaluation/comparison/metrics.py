"""Studies whose target has no value, side by side: mean metrics, and differences with intervals."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from autotune.algorithms.ranking.difference import difference, mean_interval
from autotune.algorithms.ranking.repeats import missed, timed
from autotune.algorithms.ranking.speedup import Timed
from autotune.errors import UserError
from autotune.evaluation import spreadsheet
from autotune.evaluation.comparison import from_studies
from autotune.evaluation.comparison.from_studies import Study
from autotune.evaluation.comparison.model import CONFIRMED, TUNING
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study.manifest import Manifest
from autotune.trial import Target, usual_hardware
from autotune.trial.wording import aim, metric_name, metric_of

_TRIAL = re.compile(r"(.+)#(\d+)")


@dataclass(frozen=True)
class MetricRow:
    """A configuration's runs: their mean metric, and how much better than the baseline's it is.

    `kind` is "confirmed" (runs on fresh seeds) or "tuning" (the one run for which it was chosen).
    Intervals are at 95 %, None for a single run.
    """

    name: str
    kind: str
    n: int
    mean: float
    interval: tuple[float, float] | None
    gain: float | None
    gain_interval: tuple[float, float] | None
    search_seconds: float


@dataclass(frozen=True)
class MetricComparison:
    """The rows, the best first; `baseline` names the one that the others are compared with."""

    target: Target
    baseline: str
    rows: tuple[MetricRow, ...]


@dataclass(frozen=True)
class _Candidate:
    name: str
    study: Study
    kind: str
    runs: tuple[Timed, ...]
    baseline: bool


def has_no_value(words: Sequence[str]) -> bool:
    """Whether the first study folder among the words has a target without a value."""
    for word in words:
        folder, _ = _parts(word)
        if (folder / EXPERIMENT_JSON).is_file():
            return not Manifest.read(folder).target.timed
    return False


def compare(words: Sequence[str], baseline: str | None, allow: Sequence[str]) -> MetricComparison:
    """Compare the study folders, or the trials of them as `DIR#7`, that the words name.

    Args:
        words: what is compared; of a study the confirmed configurations, or else the best trial.
        baseline: such a word, or `trial:N` of the first study; by default the first study's own
            baseline, or else the first word.
        allow: conditions that may differ: `target`, `hardware`.

    Raises:
        UserError: one cannot be read or compared.
    """
    found = [candidate for word in words for candidate in _read(word)]
    base = _baseline(found, words, baseline)
    everyone = list({c.name: c for c in (*found, base)}.values())
    _check_same(everyone, allow)
    target = base.study.target
    rows = [_row(c, base, target) for c in everyone]
    rows.sort(key=lambda row: row.mean, reverse=target.mode == "max")
    return MetricComparison(target, base.name, tuple(rows))


def _parts(word: str) -> tuple[Path, int | None]:
    found = _TRIAL.fullmatch(word)
    if found is not None and not Path(word).exists():
        return Path(found[1]), int(found[2])
    return Path(word), None


def _read(word: str) -> list[_Candidate]:
    folder, number = _parts(word)
    study = from_studies.read(folder)
    if study.target.timed:
        raise UserError(
            f"{word} has the target {aim(study.target)}, and others have none with a value: times "
            "and metrics cannot be compared"
        )
    if number is not None:
        return [_of_trial(study, study.trial(number).number)]
    numbers, best = [n for n in study.confirmations if n is not None], study.result.best
    if not numbers and best is not None:
        numbers = [best.number]
    if not numbers:
        raise UserError(f"{word} has no trial that completed")
    return [_of_trial(study, n) for n in numbers]


def _of_trial(study: Study, number: int) -> _Candidate:
    """The trial's confirmations, or else its one run.

    Raises:
        UserError: no run has a metric.
    """
    again = [t for t in study.confirmations.get(number, ()) if timed(t)]
    runs = again or [study.trial(number)]
    results = [(study.target.score(missed(t)), t.seed) for t in runs]
    counted = [Timed(s, True, seed) for s, seed in results if s is not None and math.isfinite(s)]
    if not counted:
        raise UserError(f"{study.source}#{number} has no run with a {study.target.metric}")
    kind = study.trial(number).kind
    name = f"{study.label}#{number}"
    return _Candidate(
        name, study, CONFIRMED if again else TUNING, tuple(counted), kind == "baseline"
    )


def _baseline(found: Sequence[_Candidate], words: Sequence[str], word: str | None) -> _Candidate:
    if word is not None and word.startswith("trial:"):
        folder, _ = _parts(words[0])
        word = f"{folder}#{word.removeprefix('trial:')}"
    if word is not None:
        return _read(word)[0]
    first = found[0].study
    own = next((t for t in first.searched if t.kind == "baseline"), None)
    return _of_trial(first, own.number) if own is not None else found[0]


def _check_same(found: Sequence[_Candidate], allow: Sequence[str]) -> None:
    """Refuse different targets, and different hardware where seconds limit the trials."""
    first = found[0]
    for other in found[1:]:
        one, two = first.study.target, other.study.target
        if one != two and "target" not in allow:
            raise UserError(
                f"{first.name} asks for the {aim(one)} and {other.name} for the {aim(two)}: "
                "--allow target compares them all the same"
            )
        own, its = usual_hardware(first.study.trials), usual_hardware(other.study.trials)
        if own != its and two.limit is not None and "hardware" not in allow:
            raise UserError(
                f"{first.name} ran on {own} and {other.name} on {its}: --allow hardware compares "
                "them all the same"
            )


def _row(one: _Candidate, base: _Candidate, target: Target) -> MetricRow:
    results = [run.seconds for run in one.runs]
    gained = difference(one.runs, base.runs) if one.name != base.name else None
    return MetricRow(
        one.name,
        one.kind,
        len(results),
        metric_of(target, fmean(results)),
        _turned(target, mean_interval(results)),
        gained.gain if gained is not None else None,
        gained.interval if gained is not None else None,
        sum(t.spent_seconds for t in one.study.searched),
    )


def _turned(target: Target, ends: tuple[float, float] | None) -> tuple[float, float] | None:
    """The interval of a metric from that of its signed results."""
    if ends is None:
        return None
    low, high = sorted(metric_of(target, end) for end in ends)
    return low, high


# --- output ---------------------------------------------------------------------------------------


def document(made: MetricComparison) -> dict[str, Any]:
    """The comparison as JSON types."""
    rows = [asdict(row) for row in made.rows]
    return {"target": made.target.to_json(), "baseline": made.baseline, "rows": rows}


def write_csv(made: MetricComparison, file: Path) -> None:
    """One line for each row.

    Raises:
        UserError: the file cannot be written.
    """
    spreadsheet.write_file(document(made)["rows"], file)


def print_table(made: MetricComparison, out: TextIO) -> None:
    """The rows as a table."""
    table = Table(title=f"{aim(made.target)}, against {made.baseline}", box=None)
    name = metric_name(made.target)
    for head in ("candidate", "runs", name, "95 % interval", "better by", "95 % interval", "kind"):
        table.add_column(head, justify="left" if head in ("candidate", "kind") else "right")
    for row in made.rows:
        gain = f"{row.gain:.4g}" if row.gain is not None else "-"
        table.add_row(row.name, str(row.n), f"{row.mean:.4g}", _ends(row.interval), gain,
                      _ends(row.gain_interval), row.kind)  # fmt: skip
    console = Console(file=io.StringIO(), width=140, markup=False, emoji=False)
    with console.capture() as text:
        console.print(table)
    print(text.get(), end="", file=out)
    if any(row.kind == TUNING for row in made.rows):
        print("Metrics of tuning are of runs that were chosen for them: confirm them.", file=out)


def _ends(ends: tuple[float, float] | None) -> str:
    return f"{ends[0]:.4g} to {ends[1]:.4g}" if ends is not None else "-"
