"""The report of a replay: how its repeats compare with the trial, bit for bit and in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TextIO

from autotune.evaluation.export.replay import Exported
from autotune.storage.codec import encode
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.trial import KNOBS, SHOWN_KNOBS, Metrics, State, Target, Trial, wording

_TIMES = ("_per_second", "_seconds", "exposed_communication")
"""How metrics end that measure time and so differ in every run."""
_VERSIONS = ("autotune", "torch", "numpy", "python")


@dataclass(frozen=True)
class Difference:
    """The first difference of two runs of one seed; None: a metric that a run did not report."""

    step: int
    metric: str
    before: float | None
    now: float | None


def compare(
    before: Trial, now: Trial, turned: Collection[int] = (), forks: Collection[int] = ()
) -> tuple[int, Difference | None]:
    """How many milestones of two trials are equal bit for bit, and their first difference.

    Compared are the milestones that both have, in all metrics except those that measure time. Not
    compared are the knobs at the steps in `turned` and `forks`: one trial reported them before its
    controller turned them, or its parent's, the other as its schedules have them from there on;
    nor, with steps in `turned`, the progress, as the other's horizon may be longer.
    """
    forked = {*before.config, *SHOWN_KNOBS}
    known = {r.step: _lasting(r.metrics) for r in before.reports if r.metrics}
    same = 0
    for report in now.reports:
        then, here = known.get(report.step, {}), _lasting(report.metrics)
        if not then:
            continue
        ignored = {"progress"} if turned else set[str]()
        ignored |= set(KNOBS) if report.step in turned else set()
        ignored |= forked if report.step in forks else set()
        for name in [n for n in dict.fromkeys((*here, *then)) if n not in ignored]:
            if not _equal(then.get(name), here.get(name)):
                return same, Difference(report.step, name, then.get(name), here.get(name))
        same += 1
    return same, None


def _lasting(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if not name.endswith(_TIMES)}


def _equal(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return a == b or (math.isnan(a) and math.isnan(b))


def document(exported: Exported, result: StudyResult, manifest: Manifest) -> dict[str, Any]:
    """The outcome as one JSON document: the trial, its repeats, and their comparison."""
    trial, repeats = exported.trial, result.trials
    own = next((t for t in repeats if t.seed == trial.seed), None)
    same, difference = 0, None
    if own is not None:
        same, difference = compare(trial, own, exported.turned, exported.forks)
    # A repeat that did not reach the target takes longer than any that did.
    target = exported.target
    results = [target.result(t) for t in repeats]
    known = [math.inf if result is None else result for result in results]
    median = statistics.median(known) if known else math.inf
    middle = wording.plain_result(target, median) if math.isfinite(median) else None
    return {
        "study": exported.study,
        "folder": str(result.folder),
        "ended": result.ended,
        "target": encode(target),
        "trial": _row(trial, target),
        "repeats": [_row(t, target) for t in repeats],
        "reached": sum(t.succeeded for t in repeats),
        "median_seconds" if target.timed else f"median_{target.metric}": middle,
        "identical": same > 0 and difference is None,
        "milestones": same,
        "first_difference": encode(difference),
        "other_conditions": _other_conditions(exported, own, manifest.versions),
    }


def _row(trial: Trial, target: Target) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "seed": trial.seed,
        "state": str(trial.state),
        "reason": trial.reason,
        "seconds": trial.seconds,
        f"best_{target.metric}": encode(target.best(trial)),
        "hardware": str(trial.hardware) if trial.attempts else None,
    }


def _other_conditions(
    exported: Exported, own: Trial | None, versions: Mapping[str, Any]
) -> list[str]:
    """Differences in hardware and versions since the trial ran, which may change the last bits."""
    before, found = exported.trial, []
    if own is not None and own.attempts and before.attempts:
        old, new = (replace(t.hardware, shared=False) for t in (before, own))
        found += [f"hardware {old} then, {new} now"] if old != new else []
    ran = [t for t in (before, own) if t is not None and t.attempts]
    fixed = before.config.get("deterministic") is True
    if any(t.hardware.gpus_per_worker for t in ran) and not fixed:
        found.append("a GPU promises equal bits only to a trainer with deterministic=True")
    for package in _VERSIONS:
        then, now = exported.versions.get(package), versions.get(package)
        if then != now:
            found.append(f"{package} {then} then, {now} now")
    return found


def print_document(document: Mapping[str, Any], out: TextIO) -> None:
    """The document as a table and two sentences."""
    target = Target(**document["target"])
    best = f"best_{target.metric}"
    print(f"{document['study']}: {wording.goal(target)}", file=out)
    repeats = ((f"repeat {r['trial']}", r) for r in document["repeats"])
    rows = [("trial", document["trial"]), *repeats]
    for name, row in rows:
        reached = row["state"] in (State.REACHED, State.COMPLETED)
        least = "" if reached or not target.timed else "> "
        seconds = f"{least}{wording.amount(target, row['seconds'])}"
        value = row[best]
        shown = "-" if value is None else f"{float(value):.4g}"
        ended = row["state"].lower() + ("" if reached else f": {row['reason']}")
        print(f"  {name:<10} seed {row['seed']:<10} {seconds:>11}  {shown:>8}  {ended}", file=out)
    middle = document["median_seconds" if target.timed else f"median_{target.metric}"]
    count, unit = len(document["repeats"]), wording.unit(target)
    what = "reached the target" if target.timed else "completed"
    median = f"none, too few {what}" if middle is None else wording.quantity(middle, unit)
    done = f"{document['reached']} of {count} {'reached it' if target.timed else what}"
    print(f"Median of the repeats: {median}; {done}.", file=out)
    print(verdict(document), file=out)
    print(f"The repeats are the study {document['folder']}", file=out)


def verdict(document: Mapping[str, Any]) -> str:
    """Whether the repeat with the trial's own seed equals the trial, in words."""
    difference, others = document["first_difference"], "; ".join(document["other_conditions"])
    if document["identical"]:
        count = document["milestones"]
        return f"The same seed gave the same metrics bit for bit: {count} milestones."
    if difference is None:
        return "The same seed cannot be compared: no milestone with metrics is in both."
    why = others or "the trainer has changed since, or is not deterministic"
    return (
        f"The same seed differs first at step {difference['step']}: {difference['metric']} "
        f"{difference['before']} then, {difference['now']} now ({why})."
    )
