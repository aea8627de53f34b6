"""A study's report as one HTML file: what is fastest, by how much, why, and what it cost.

Run as `python -m dashboards.report DIR FILE.html`, or by `autotune report DIR`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from autotune.algorithms.ranking.repeats import probes
from autotune.evaluation import experience
from autotune.evaluation.comparison.metrics import MetricComparison
from autotune.evaluation.comparison.model import Comparison
from autotune.evaluation.comparison.sources import confirmed
from autotune.evaluation.summary import confirmation, confirmed_text
from autotune.storage import driver_lock
from autotune.storage.codec import encode
from autotune.storage.journal import JOURNAL
from autotune.study.experience.known import because
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult, read
from autotune.trial import STEPS, State, Target
from autotune.trial.wording import amount, came_to, goal, metric_name, quantity
from dashboards import tables
from dashboards.compared import comparison_page
from dashboards.compared_metrics import metrics_page
from dashboards.page import Page, render, write
from dashboards.sections import sections

_REFRESH_SECONDS = 30  # as often as a running study's report is made again


def write_study(study: str | Path | StudyResult, path: str | Path) -> dict[str, float]:
    """Write the report of a study, finished or running, to the file `path`.

    Args:
        study: a study folder, or the result of a study (its folder may be gone).
        path: the HTML file; it is written whole or not at all.

    Returns:
        The interval of the best trial's confirmed speedup, once there is one.

    Raises:
        UserError: the folder holds no study, the file cannot be written, or plotly is missing.
    """
    result, manifest = _read(study)
    rows = tables.leaderboard(result, confirmed(result, manifest))
    write(_page(result, manifest, rows), Path(path))
    return _interval(result, rows)


def study_html(folder: Path) -> str:
    """The report of the study in a folder, as text.

    Raises:
        UserError: the folder holds no study, or plotly is missing.
    """
    result, manifest = _read(folder)
    return render(study_page(result, manifest, confirmed(result, manifest)))


def _interval(result: StudyResult, rows: Sequence[tables.Row]) -> dict[str, float]:
    number = result.best.number if result.best is not None else None
    row = next((r for r in rows if r["trial"] == number), {})
    ends = {f"confirmed_{k}": row.get(k) for k in ("speedup_low", "speedup_high")}
    return {k: v for k, v in ends.items() if v is not None}


def write_comparison(comparison: Comparison | MetricComparison, path: str | Path) -> None:
    """Write the report of a comparison to the file `path`, whole or not at all.

    Raises:
        UserError: the file cannot be written, or plotly is missing.
    """
    if isinstance(comparison, MetricComparison):
        write(metrics_page(comparison), Path(path))
    else:
        write(comparison_page(comparison), Path(path))


def _read(study: str | Path | StudyResult) -> tuple[StudyResult, Manifest | None]:
    """The study's result and manifest: the journal is read once, if at all."""
    if isinstance(study, StudyResult):
        return study, Manifest.existing(study.folder)
    manifest = Manifest.read(Path(study))
    metrics = {manifest.target.metric, *tables.METRICS}
    return read(Path(study), manifest.target, metrics), manifest


def study_page(
    result: StudyResult, manifest: Manifest | None, comparison: Comparison | None = None
) -> Page:
    """A study's whole report; without a manifest it has the folder's name and no foot."""
    return _page(result, manifest, tables.leaderboard(result, comparison))


def _page(result: StudyResult, manifest: Manifest | None, rows: Sequence[tables.Row]) -> Page:
    target = result.target
    limits = "".join(f"; {limit}" for limit in result.limits)
    line = f"{_aim(target)}{limits}. {_states(result)}"
    name = manifest.name if manifest is not None else result.folder.name
    foot = _foot(manifest, result) if manifest is not None else ""
    running = result.ended == "running" and driver_lock.is_held(result.folder / JOURNAL)
    refresh = _REFRESH_SECONDS if running else 0
    best = result.best
    config = json.dumps(encode(best.config), indent=2) if best is not None else ""
    line += f" Made {datetime.now(UTC):%H:%M} UTC; it refreshes itself." if running else ""
    return Page(name, line, _cards(result, rows), sections(result, rows), foot, config, refresh)


def _aim(target: Target) -> str:
    """What the study is about, in words."""
    counted = "steps" if target.clock == STEPS else f"seconds on the {target.clock} clock"
    if target.value is None:
        text = goal(target)
        return f"{text[0].upper()}{text[1:]}, in {counted}"
    least = "at least" if target.mode == "max" else "at most"
    text = f"Time to {target.metric} of {least} {target.value:g}, in {counted}"
    return (
        f"{text}; limit {amount(target, target.horizon)}"
        if target.clock == STEPS
        else (f"{text}; limit {target.horizon:g} s")
    )


def _states(result: StudyResult) -> str:
    counts = [f"{sum(t.state is s for t in result.searched)} {s.lower()}" for s in State]
    states = ", ".join(c for c in counts if not c.startswith("0 "))
    again, probed = sum(t.repeats is not None for t in result.trials), len(probes(result.trials))
    more = f" and {again} repeats" if again else ""
    more += f" and {probed} probes" if probed else ""
    return f"{len(result.searched)} trials{more}: {states or 'none yet'}; {result.ended}."


def _foot(manifest: Manifest, result: StudyResult) -> str:
    options, commit = manifest.options, manifest.git_commit
    parts = [f"sampler {options.sampler}, pruner {options.pruner}"]
    parts += [f"{package} {version}" for package, version in manifest.versions.items() if version]
    parts += _known(manifest, result)
    return " · ".join([*parts, *([f"commit {commit[:10]}"] if commit else [])])


def _known(manifest: Manifest, result: StudyResult) -> list[str]:
    """What was known of other studies, and which of them this one is most like by now."""
    found = experience.now(manifest, result)
    if found is None or found.get("off"):
        return []
    knew = because(found["studies"], found["earlier_runs"], found["most_alike"])
    return [part for part in (knew, experience.sentence(found)) if part]


def _cards(result: StudyResult, rows: Sequence[tables.Row]) -> list[tuple[str, str, str]]:
    """A study's main figures, in large type: label, value, and a remark."""
    again = math.fsum(t.spent_seconds for t in result.trials if t.repeats is not None)
    of_it = f"{again:.4g} s of it for repeats" if again else "worker-group seconds of wall time"
    spent = ("spent", _span(result.spent_seconds), of_it)
    number = result.best.number if result.best is not None else None
    row = next((r for r in rows if r["trial"] == number), None)
    if row is None:
        near = came_to(result.target, result.nearest)
        if not result.target.timed:
            return [("best", "none", near or "no trial has completed"), spent]
        remark = "no trial has reached the target"
        return [("best time", "not reached", f"{remark}; {near}" if near else remark), spent]
    if not result.target.timed:
        return [*_metric_cards(result, row), spent]
    cards = []
    if row["confirmed_result"] is not None:
        low, high = row["confirmed_low"], row["confirmed_high"]
        spread = f"{low:.4g} to {high:.4g} s" if high else f"from {low:.4g} s"
        remark = f"trial {number}: median of {row['repeats']} repeats, {spread}"
        cards.append(("confirmed time", _seconds(row["confirmed_result"]), remark))
    if row["tuning_result"] is not None:
        remark = f"trial {number}, one run"
        cards.append(("time while tuning", _seconds(row["tuning_result"]), remark))
    if row["speedup"] and row["kind"] == tables.BASELINE:
        remark = (
            "nothing beat it when confirmed"
            if row["of"] == "confirmed"
            else "the baseline is the best"
        )
        cards.append(("faster than the baseline", "none", remark))
    elif row["speedup"]:
        remark = f"{row['compared_runs']}, not confirmed"
        if row["speedup_low"] is not None:
            high = row["speedup_high"]
            to = f"to {high:.3g}" if high is not None else "up"
            remark = f"confirmed; 95% interval {row['speedup_low']:.3g} {to}"
        elif row["of"] == "confirmed":
            remark = "confirmed means"
        remark += f"; {row['factors']}" if row["factors"] is not None else ""
        cards.append(
            ("faster than the baseline", f"{row['bound']}{row['speedup']:.3g} times", remark)
        )
    return [*cards, spent]


def _metric_cards(result: StudyResult, row: tables.Row) -> list[tuple[str, str, str]]:
    """The main figures where the target has no value."""
    number, name, cards = row["trial"], metric_name(result.target), []
    again = result.confirmation(result.best)
    if again is not None:
        remark = f"trial {number}: {confirmed_text(confirmation(again))}"
        cards.append((f"confirmed {name}", quantity(row["confirmed_result"], ""), remark))
    cards.append((f"{name} while tuning", row["shown_result"], f"trial {number}, one run"))
    if row["kind"] == tables.BASELINE:
        cards.append(("better than the baseline", "none", "the baseline is the best"))
    elif row["gain"] is not None:
        tuned = f"{row['compared_runs']}, not confirmed"
        remark = tuned if row["of"] == "tuning" else "confirmed means"
        found = result.gain_of_confirmed
        if found is not None and found.interval is not None:
            low, high = found.interval
            remark = f"confirmed; 95% interval {low:.3g} to {high:.3g}"
        cards.append(("better than the baseline", f"by {row['gain']:.3g}", remark))
    return cards


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"


def _span(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    write_study(sys.argv[1], sys.argv[2])
