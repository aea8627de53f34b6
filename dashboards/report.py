"""A study as one HTML file: what was fastest, by how much, why, and what the search cost.

Run as `python -m dashboards.report DIR FILE.html`, or by `autotune report DIR`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune import record
from autotune.result import StudyResult, read
from autotune.trial import State
from dashboards import tables
from dashboards.page import Page, write
from dashboards.sections import sections

_RECORD = "experiment.json"


def write_study(study: str | Path | StudyResult, path: str | Path) -> None:
    """Write the report of a study, finished or running, to the file `path`.

    Args:
        study: a study folder, or the result of a study (its folder may be gone).
        path: the HTML file; it is written whole or not at all.

    Raises:
        UserError: the folder holds no study, the file cannot be written, or plotly is missing.
    """
    result = study if isinstance(study, StudyResult) else _read(Path(study))
    write(study_page(result, _facts(result.folder)), Path(path))


def _read(folder: Path) -> StudyResult:
    return read(folder, record.target(folder))


def _facts(folder: Path) -> Mapping[str, Any]:
    return record.load(folder) if (folder / _RECORD).is_file() else {"name": folder.name}


def study_page(result: StudyResult, facts: Mapping[str, Any]) -> Page:
    """All sections of a study's report; `facts` is its `experiment.json`."""
    target = result.target
    aim = "at least" if target.mode == "max" else "at most"
    line = f"Time to {target.metric} of {aim} {target.value:g}, in seconds on the {target.clock} "
    line += f"clock; limit {target.limit:g} s. {_standing(result)}"
    return Page(
        str(facts.get("name", "study")), line, _cards(result), sections(result), _foot(facts)
    )


def _standing(result: StudyResult) -> str:
    counts = [f"{sum(t.state is s for t in result.trials)} {s.lower()}" for s in State]
    said = ", ".join(c for c in counts if not c.startswith("0 "))
    return f"{len(result.trials)} trials: {said or 'none yet'}; {result.ended}."


def _foot(facts: Mapping[str, Any]) -> str:
    versions = facts.get("versions") or {}
    said = [f"{k} {v}" for k, v in versions.items() if v]
    commit = facts.get("git_commit")
    told = [f"sampler {facts.get('sampler')}, pruner {facts.get('pruner')}", *said]
    return " · ".join([*told, *([f"commit {commit[:10]}"] if commit else [])])


def _cards(result: StudyResult) -> list[tuple[str, str, str]]:
    rows = tables.leaderboard(result)
    best = next((r for r in rows if r["rank"]), None)
    cards = []
    if best is None:
        cards.append(("best time", "not reached", "no trial has reached the target"))
    else:
        cards.append(("best time, one run", _seconds(best["tuning_seconds"]),
                      f"trial {best['trial']}"))  # fmt: skip
    confirmed = [r for r in rows if r["confirmed_seconds"] is not None and r["kind"] == "trial"]
    if confirmed:
        row = min(confirmed, key=lambda r: r["confirmed_seconds"])
        low, high = row["confirmed_low"], row["confirmed_high"]
        spread = f"{low:.4g} to {high:.4g} s" if high else f"from {low:.4g} s"
        cards.append(("best confirmed time", _seconds(row["confirmed_seconds"]),
                      f"trial {row['trial']}: median of {row['repeats']}, {spread}"))  # fmt: skip
    chosen = min(confirmed, key=lambda r: r["confirmed_seconds"]) if confirmed else best
    if chosen and chosen["speedup"]:
        both = confirmed and any(r["kind"] == "baseline" and r["repeats"] for r in rows)
        kind = "confirmed medians" if both else "one run each, not confirmed"
        cards.append(("faster than the baseline", f"{chosen['speedup']:.3g} times", kind))
    again = sum(t.spent_seconds for t in result.trials if tables.repeated(t) is not None)
    spent = f"{again:.4g} s of it for repeats" if again else "worker-group seconds of wall time"
    cards.append(("spent", _span(result.spent_seconds), spent))
    return cards


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"


def _span(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    write_study(sys.argv[1], sys.argv[2])
