"""The section of a study's report on plans: what each probed one is worth, and which is kept."""

from __future__ import annotations

from autotune.algorithms.plans import words
from autotune.evaluation.summary import plans
from autotune.study.result import StudyResult
from dashboards.page import Section
from dashboards.tables import Row

_TEXT = (
    "What changes only the seconds per sample was probed for a few seconds each, between probes of "
    "the default plan; the search then had the plan that is kept. Above 1 a plan is faster."
)
_COLUMNS = {
    "plan": "plan",
    "times": "times as fast",
    "low": "95% from",
    "high": "to",
    "seconds": "s per 1,000 samples",
    "peak": "peak bytes",
    "probes": "probes",
    "verdict": "",
}


def sections(result: StudyResult) -> list[Section]:
    """The section, where the study has probes."""
    found = plans(result)
    if found is None:
        return []
    rows = _rows(result)
    columns = {k: v for k, v in _COLUMNS.items() if k != "peak" or any(r["peak"] for r in rows)}
    said = str(found["said"])
    text = f"{said[:1].upper()}{said[1:]}."
    if rows:
        text = f"{text} {_TEXT} {found['pareto']}."
    return [Section("plans", "Plans", text, None, rows, columns, open=True)]


def _rows(result: StudyResult) -> list[Row]:
    """One row for each plan that was probed beside the default, in the order of the probes."""
    rows: list[Row] = []
    for line in words.lines(result.trials):
        low, high = line.probed.interval or (None, None)
        seconds = line.probed.seconds
        rows.append(
            {
                "plan": line.plan,
                "times": line.probed.ratio,
                "low": low,
                "high": high,
                "seconds": None if seconds is None else 1000 * seconds,
                "peak": line.probed.peak,
                "probes": line.probed.runs,
                "verdict": line.verdict,
            }
        )
    return rows
