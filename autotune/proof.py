"""What a person sees of confirmations: the table, one line, and JSON types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from autotune.repeats import Confirmation


def confirmations_table(found: Sequence[Confirmation]) -> Table:
    """Tuning times and confirmed times, side by side."""
    made = Table(title="run again on fresh seeds, each alone", box=None)
    for name in ("trial", "tuning time", "confirmed mean", "median", "reached", "times"):
        made.add_column(name, justify="left" if name in ("trial", "times") else "right")
    for one in found:
        tuned, median = one.tuning_seconds, one.median_seconds
        made.add_row(
            str(one.number),
            f"{tuned:.2f} s" if tuned is not None else "missed",
            f"{lower_bound_mark(one.reached, len(one.runs), '> ')}{one.mean_seconds:.2f} s",
            f"{median:.2f} s" if median is not None else "-",
            f"{one.reached} of {len(one.runs)}",
            "  ".join(f"{t.seconds:.2f}" if t.time_to_target else "missed" for t in one.runs),
        )
    return made


def facts(one: Confirmation) -> dict[str, Any]:
    """A confirmation as JSON types; `seconds` has None for a run that missed the target."""
    return {
        "trial": one.number,
        "tuning_seconds": one.tuning_seconds,
        "mean_seconds": one.mean_seconds,
        "median_seconds": one.median_seconds,
        "runs": len(one.runs),
        "reached": one.reached,
        "seconds": [t.time_to_target for t in one.runs],
        "trials": [t.number for t in one.runs],
    }


def line(told: Mapping[str, Any]) -> str:
    """The `facts` of a confirmation in words.

    >>> line({"mean_seconds": 3.5, "runs": 5, "reached": 4})
    'more than 3.50 s on 5 fresh seeds (4 of 5 reached)'
    """
    runs, reached = told["runs"], told["reached"]
    seeds = f"{runs} fresh seed{'' if runs == 1 else 's'}"
    return f"{_mean(told)} on {seeds} ({reached} of {runs} reached)"


def line_of_races(told: Mapping[str, Any]) -> str:
    """The `facts` of a configuration's runs in the search in words.

    >>> line_of_races({"mean_seconds": 3.5, "runs": 3, "reached": 3})
    '3.50 s as the mean of 3 runs in the search (3 of 3 reached)'
    """
    runs, reached = told["runs"], told["reached"]
    return f"{_mean(told)} as the mean of {runs} runs in the search ({reached} of {runs} reached)"


def _mean(told: Mapping[str, Any]) -> str:
    mark = lower_bound_mark(told["reached"], told["runs"], "more than ")
    return f"{mark}{told['mean_seconds']:.2f} s"


def lower_bound_mark(reached: int, runs: int, said: str) -> str:
    """A mean that counts a run that missed the target as the limit is too small."""
    return "" if reached == runs else said
