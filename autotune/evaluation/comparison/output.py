"""A comparison as text for a terminal, as one JSON document, and as a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from autotune.evaluation import spreadsheet
from autotune.evaluation.comparison.factors import of_row
from autotune.evaluation.comparison.model import Comparison, Interval, Row
from autotune.storage.codec import encode
from autotune.trial import STEPS

WIDTH = 100
_LEGEND = {
    "speedup (95 %)": "speedup: the baseline's geometric mean of time over this one's.",
    "P": "P: chance to be faster.",
    "p": "p: log-rank test, for the whole table (Holm).",
    "why": "why: speedup = samples per second x fewer samples.",
    "MLPerf": "MLPerf: mean without the best and the worst run.",
    "search": "search: worker-group seconds that finding it took.",
    "pays": "pays: the runs whose saved seconds make up for the search.",
}
"""What columns mean, by their names."""


def print_table(comparison: Comparison, out: TextIO) -> None:
    """Two tables, of times and of costs, and the notes; no line has more than 100 columns."""
    times = _informative([_TIMES, *(_times(r) for r in comparison.rows)])
    costs = _informative([_COSTS, *(_costs(r) for r in comparison.rows)])
    print(_title(comparison), file=out)
    _print(times, out)
    print(file=out)
    _print(costs, out)
    print(file=out)
    names = {column[0] for column in (*times, *costs)}
    legend = " ".join(meaning for name, meaning in _LEGEND.items() if name in names)
    for line in (x for n in (legend, *_remarks(comparison)) for x in _wrapped(n)):
        print(line, file=out)


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON types, without the runs' curves and the configurations."""
    return {
        "baseline": comparison.baseline,
        "level": comparison.level,
        "tau_seconds": comparison.tau_seconds,
        "differing": list(comparison.differing),
        "notes": list(comparison.notes),
        "rows": [_document(row) for row in comparison.rows],
    }


def write_csv(comparison: Comparison, file: Path) -> None:
    """One line a candidate; intervals as two columns, unknown figures as empty cells.

    Raises:
        UserError: the file cannot be written.
    """
    spreadsheet.write_file([_flat(row) for row in comparison.rows], file)


# --- text -----------------------------------------------------------------------------------------

_TIMES = ("", "kind", "reached", "median", "speedup (95 %)", "P", "p", "why")
_COSTS = ("", "mean (95 %)", "MLPerf", "samples", "a second", "worker-s", "GPU-s", "search", "pays")


def _title(comparison: Comparison) -> str:
    conditions = comparison.baseline_row.candidate.conditions
    target = str(conditions.target) if conditions.target is not None else "the target"
    in_steps = conditions.unit == STEPS
    clock = f", {conditions.clock} clock" if conditions.clock and not in_steps else ""
    where = "" if conditions.workers is None else f"{conditions.workers} x "
    hardware = " ".join((conditions.hardware or "").split())
    shared = ", shared" if conditions.sharing else ""
    on = f"; {where}{hardware}{shared}" if hardware else ""
    what = "Steps" if in_steps else "Seconds"
    return _short(f"{what} to {target}{clock}{on}", WIDTH)


def _times(row: Row) -> tuple[str, ...]:
    speed = "baseline" if row.is_baseline else _speed(row)
    return (
        ("* " if row.is_baseline else "  ") + row.name,
        row.candidate.kind,
        f"{row.reached}/{row.n}",
        _number(row.median_seconds),
        speed,
        _share(row.probability_faster),
        _share(row.p_adjusted, 3),
        _why(row),
    )


def _speed(row: Row) -> str:
    if row.speedup is None:
        return "-"
    return f"{row.speedup_bound}{row.speedup:.2f}x{_range(row.speedup_interval, '.2f')}"


def _why(row: Row) -> str:
    found = of_row(row)
    if found is None:
        return "-" if not row.is_baseline else ""
    return f"{found.faster:.2f} x {found.fewer:.2f}"


def _costs(row: Row) -> tuple[str, ...]:
    search = row.candidate.search_seconds
    unit = "" if row.unit == "samples" or row.samples is None else f" {row.unit}"
    return (
        ("* " if row.is_baseline else "  ") + row.name,
        _number(row.mean_seconds) + _range(row.mean_interval, ".3g"),
        _number(row.olympic_seconds),
        _number(row.samples) + unit,
        _number(row.samples_per_second),
        _number(row.worker_seconds),
        _number(row.gpu_seconds),
        "-" if row.is_baseline else _number(search),
        "-" if row.break_even_runs is None else f"{row.break_even_runs:.0f} runs",
    )


def _remarks(comparison: Comparison) -> list[str]:
    remarks = []
    if comparison.tau_seconds is not None:
        tau = f"{comparison.tau_seconds:.4g} {comparison.unit}"
        remarks.append(f"restricted mean over the first {tau} (unreached runs count as {tau})")
    remarks += _factors(comparison)
    if any(row.speedup_bound for row in comparison.rows):
        remarks.append(
            ">= and <=: runs that did not reach the target count with the time for which they were "
            "observed, so that the ratio is a bound; ~: on both sides."
        )
    for row in comparison.rows:
        seconds = row.candidate.tuning_seconds
        if row.candidate.kind == "confirmed" and seconds is not None:
            remarks.append(f"{row.name} took {seconds:.4g} {comparison.unit} in the search.")
    return [*remarks, *comparison.notes]


def _factors(comparison: Comparison) -> list[str]:
    """By what the first candidate with a speedup is faster than the baseline."""
    for row in comparison.rows:
        found = of_row(row) if row.speedup is not None else None
        if found is not None:
            times = f"{row.speedup_bound}{row.speedup:.2f} times as fast as {comparison.baseline}"
            return [f"{row.name} is {times}: {found}."]
    return []


def _informative(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The columns of the rows, without empty ones."""
    return [c for c in zip(*rows, strict=True) if {*c[1:]} - {"", "-"}]


def _print(columns: Sequence[tuple[str, ...]], out: TextIO) -> None:
    """The columns side by side, names cut where there is no room."""
    rows = list(zip(*columns, strict=True))
    longest, *others = (max(len(cell) for cell in column) for column in zip(*rows, strict=True))
    width = min(longest, max(10, WIDTH - sum(others) - 2 * len(others)))
    for name, *cells in rows:
        padded = (f"{c:>{w}}" for c, w in zip(cells, others, strict=True))
        print("  ".join((f"{_short(name, width):<{width}}", *padded)).rstrip(), file=out)


def _number(value: float | None) -> str:
    """Four digits, without a power of ten: 0.01234, 12.34, 123.4, 1234, 123456."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _range(interval: Interval | None, form: str) -> str:
    if interval is None or interval.low is None:
        return ""
    high = "" if interval.high is None else format(interval.high, form)
    return f" ({format(interval.low, form)}-{high})"


def _share(value: float | None, digits: int = 2) -> str:
    """A probability without its leading zero.

    >>> _share(0.25), _share(1.0), _share(0.0003, 3)
    ('.25', '1.00', '<.001')
    """
    if value is None:
        return "-"
    least = 10.0**-digits
    below = 0 < value < least
    return ("<" if below else "") + f"{least if below else value:.{digits}f}".removeprefix("0")


def _short(text: str, width: int) -> str:
    """`text` in so many columns, its middle left out: the end of a name says most.

    >>> _short("studies/a-long-name#7", 12)
    'studi…name#7'
    """
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


# --- data -----------------------------------------------------------------------------------------


def _document(row: Row) -> dict[str, Any]:
    candidate = row.candidate
    values = {f.name: encode(getattr(row, f.name)) for f in fields(row) if f.name != "candidate"}
    runs = [
        {f.name: encode(getattr(run, f.name)) for f in fields(run) if f.name != "curve"}
        for run in candidate.runs
    ]
    own = ("source", "kind", "trial", "tuning_seconds", "search_seconds", "search_trials")
    about = {name: encode(getattr(candidate, name)) for name in (*own, "conditions", "left_out")}
    return {"name": candidate.name, **about, **values, "runs": runs}


def _flat(row: Row) -> dict[str, Any]:
    candidate = row.candidate
    flat: dict[str, Any] = {
        "name": candidate.name,
        "source": candidate.source,
        "kind": candidate.kind,
        "trial": candidate.trial,
        "tuning_seconds": candidate.tuning_seconds,
        "search_seconds": candidate.search_seconds,
    }
    for entry in fields(row):
        value = getattr(row, entry.name)
        if entry.name in ("candidate", "survival", "why_not"):
            continue
        if entry.name.endswith("_interval"):
            stem = entry.name.removesuffix("_interval")
            low, high = (None, None) if value is None else (value.low, value.high)
            flat |= {f"{stem}_low": low, f"{stem}_high": high}
        else:
            flat[entry.name] = value
    return flat
