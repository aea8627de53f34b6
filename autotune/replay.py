"""An exported trial, trained again: with its own seed, to compare, and with fresh ones, to measure.

A replay is a study like any other, of one configuration: it has a journal, is shown in MLflow, and
is resumed. Its first trial takes the exported trial's seed, so that on the same machine with the
same versions the losses are the same bit for bit; each runs alone, so that its time is honest.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from autotune import recipes, record
from autotune.driver.plan import trial_seed
from autotune.errors import UserError
from autotune.experiment import Experiment, Scaling
from autotune.export import FACTS, FORMAT
from autotune.result import StudyResult
from autotune.space import Fixed, SearchSpace
from autotune.trackers.journal import decode_config, encode
from autotune.trackers.view import KNOBS as SHOWN
from autotune.trial import (
    KNOBS,
    Change,
    FailurePolicy,
    Hardware,
    Metrics,
    Params,
    Report,
    State,
    Target,
    Trial,
)

_TIMES = ("_per_second", "_seconds")  # metrics that measure time, and so never come twice
_VERSIONS = ("autotune", "torch", "numpy", "python")


@dataclass(frozen=True)
class Exported:
    """An export read back; `trial` has its reports without their clocks.

    `turned` are the steps at which its schedules turn a knob that a controller turned in the trial.
    """

    folder: Path
    study: str
    trial: Trial
    target: Target
    scaling: Scaling
    failure: FailurePolicy
    train: str | None
    python_path: tuple[str, ...]
    versions: Mapping[str, Any]
    forks: tuple[int, ...] = ()
    turned: frozenset[int] = frozenset()


def read(folder: Path) -> Exported:
    """The export in `folder`.

    Raises:
        UserError: it is no export, of a later version, or damaged.
    """
    try:
        told = json.loads((folder / FACTS).read_bytes())
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise UserError(f"{folder} is not an export: it has no {name}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} cannot be read: {error}") from None
    if not isinstance(told, dict) or told.get("autotune_export") != FORMAT:
        raise UserError(f"{folder / FACTS} is not of an export that this version reads ({FORMAT})")
    try:
        train, python_path = _place(told)
        return Exported(
            folder=folder.resolve(),
            study=str(told["study"]),
            trial=_trial(told, {k: decode_config(v) for k, v in config.items()}),
            target=Target(**told["target"]),
            scaling=Scaling(**{**told["scaling"], "max_concurrent_trials": 1}),
            failure=FailurePolicy(**told["failure"]),
            train=train,
            python_path=python_path,
            versions=dict(told["versions"]),
            forks=tuple(int(part["from_step"]) for part in told.get("lineage", ())[1:]),
            turned=frozenset(made["step"] for made in told.get("turned") or ()),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        line = str(error).partition("\n")[0]
        raise UserError(f"{folder} is damaged: {type(error).__name__}: {line}") from None


def _place(told: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    """The trainer's name, and the folders that it is imported from."""
    train, folders = told["train"], told["python_path"]
    if not isinstance(train, str | None):
        raise TypeError(f"train must be text or null, got {train!r}")
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        raise TypeError(f"python_path must be a list of text, got {folders!r}")
    return train, tuple(folders)


def _trial(told: Mapping[str, Any], config: Mapping[str, Any]) -> Trial:
    return Trial(
        number=told["number"],
        config=config,
        kind=told["kind"],
        seed=told["seed"],
        state=State(told["state"]),
        reason=told["reason"],
        seconds=float(told["seconds"]),
        reports=tuple(
            Report(r["step"], r["seconds"], {k: float(v) for k, v in r["metrics"].items()})
            for r in told["reports"]
        ),
        changes=tuple((made["step"], Change(**made["change"])) for made in told["changes"]),
        attempts=told["attempts"],
        hardware=Hardware(**told["hardware"]),
    )


# --- the study ------------------------------------------------------------------------------------


class SamePoint:
    """A sampler for a space in which everything is fixed."""

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        return {}


@dataclass(frozen=True)
class RecordedChanges:
    """A controller that makes the changes that another one made, at the same steps."""

    changes: Mapping[int, Change]

    def __call__(self, trial: Trial, others: Sequence[Trial], target: Target) -> Change | None:
        return self.changes.get(trial.reports[-1].step)


def experiment(exported: Exported) -> Experiment:
    """The study of the exported configuration alone, one trial at a time.

    Raises:
        UserError: the trainer cannot be found again; what to do about it.
    """
    named, where = exported.train, exported.folder / FACTS
    remedy = f'set "train" in {where} to module:function or /path/file.py:function'
    if named is None:
        raise UserError(f"the trainer was part of a script and cannot be found again: {remedy}")
    sys.path[:0] = [folder for folder in exported.python_path if folder not in sys.path]
    try:
        train = recipes.find(named, "trainer")
    except UserError as error:
        line = str(error).partition(" (allowed: ")[0]
        raise UserError(f"the trainer is not found from here: {line}; {remedy}") from None
    try:
        return Experiment(
            name=f"{exported.study[:93]}-replay",
            train=train,
            space=SearchSpace({k: Fixed(v) for k, v in exported.trial.config.items()}),
            target=exported.target,
            scaling=exported.scaling,
            failure=exported.failure,
        )
    except ValueError as error:
        raise UserError(f"{exported.folder} is damaged: {error}") from None


def settings(exported: Exported, repeats: int) -> dict[str, Any]:
    """What `autotune.run` is to be told of a replay with so many repeats in all."""
    if repeats < 1:
        raise UserError(f"--repeats must be a whole number >= 1 but got {repeats}")
    trial = exported.trial
    return {
        "trials": repeats,
        "sampler": SamePoint(),
        "pruner": "none",
        "controller": RecordedChanges(dict(trial.changes)) if trial.changes else None,
        "seed": trial.seed,
        "seeds": seeds(trial.seed, repeats),
        "recipe": str(exported.folder / FACTS),
    }


def seeds(first: int, count: int) -> tuple[int, ...]:
    """The trial's own seed, then fresh ones, no two alike; more of them begin with fewer of them.

    >>> seeds(7, 3)[:2] == seeds(7, 2)
    True
    """
    found, number = [first], 0
    while len(found) < count:
        number += 1
        fresh = trial_seed(first, number)
        if fresh not in found:
            found.append(fresh)
    return tuple(found)


def source(held: Mapping[str, Any]) -> Path | None:
    """The export that a study folder is the replay of, or None if it is no replay."""
    recipe = Path(held.get("recipe") or "")
    return recipe.parent if recipe.name == FACTS else None


# --- what came of it ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Where two runs of one seed part: None is a metric that a run did not report there."""

    step: int
    metric: str
    before: float | None
    now: float | None


def compare(
    before: Trial, now: Trial, turned: Collection[int] = (), forks: Collection[int] = ()
) -> tuple[int, Difference | None]:
    """How many milestones of two trials are the same bit for bit, and where they first differ.

    Compared are the milestones that both have, in all metrics but those that measure time. Not
    compared are the knobs at the steps in `turned` and `forks`: one trial reported them before its
    controller turned them, or its parent's, the other as its schedules have them from there on;
    nor, with steps in `turned`, the progress, as the other's horizon may be longer.
    """
    forked = {*before.config, *SHOWN}
    known = {r.step: _lasting(r.metrics) for r in before.reports if r.metrics}
    same = 0
    for report in now.reports:
        then, here = known.get(report.step, {}), _lasting(report.metrics)
        if not then:
            continue
        unlike = {"progress"} if turned else set[str]()
        unlike |= set(KNOBS) if report.step in turned else set()
        unlike |= forked if report.step in forks else set()
        for name in [n for n in dict.fromkeys((*here, *then)) if n not in unlike]:
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


def document(exported: Exported, result: StudyResult) -> dict[str, Any]:
    """The outcome as one JSON document: the trial, its repeats, and how they compare."""
    trial, repeats = exported.trial, result.trials
    own = next((t for t in repeats if t.seed == trial.seed), None)
    same, difference = 0, None
    if own is not None:
        same, difference = compare(trial, own, exported.turned, exported.forks)
    # A repeat that did not reach the target takes longer than any that did.
    median = statistics.median([_time(t) for t in repeats]) if repeats else math.inf
    versions = record.load(result.folder)["versions"]
    return {
        "study": exported.study,
        "folder": str(result.folder),
        "ended": result.ended,
        "target": encode(exported.target),
        "trial": _row(trial, exported.target),
        "repeats": [_row(t, exported.target) for t in repeats],
        "reached": sum(t.state is State.REACHED for t in repeats),
        "median_seconds": median if math.isfinite(median) else None,
        "identical": same > 0 and difference is None,
        "milestones": same,
        "first_difference": encode(difference),
        "other_conditions": _other_conditions(exported, own, versions),
    }


def _time(trial: Trial) -> float:
    return trial.seconds if trial.state is State.REACHED else math.inf


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
    """What is not as it was when the trial ran, of that which changes the last bits."""
    before, found = exported.trial, []
    if own is not None and own.attempts and before.attempts:
        old, new = (replace(t.hardware, shared=False) for t in (before, own))
        found += [f"hardware {old} then, {new} now"] if old != new else []
    for package in _VERSIONS:
        then, now = exported.versions.get(package), versions.get(package)
        if then != now:
            found.append(f"{package} {then} then, {now} now")
    return found


def print_document(told: Mapping[str, Any], out: TextIO) -> None:
    """The document as a table and two sentences."""
    target = told["target"]
    best = f"best_{target['metric']}"
    print(f"{told['study']}: time to {target['metric']} {target['value']:g}", file=out)
    rows = [("trial", told["trial"]), *((f"repeat {r['trial']}", r) for r in told["repeats"])]
    for name, row in rows:
        reached = row["state"] == State.REACHED
        seconds = f"{'' if reached else '> '}{row['seconds']:.2f} s"
        value = row[best]
        shown = "-" if value is None else f"{float(value):.4g}"
        ended = row["state"].lower() + ("" if reached else f": {row['reason']}")
        print(f"  {name:<10} seed {row['seed']:<10} {seconds:>11}  {shown:>8}  {ended}", file=out)
    middle, count = told["median_seconds"], len(told["repeats"])
    median = "none, too few reached the target" if middle is None else f"{middle:.2f} s"
    print(f"Median of the repeats: {median}; {told['reached']} of {count} reached it.", file=out)
    print(verdict(told), file=out)
    print(f"The repeats are the study {told['folder']}", file=out)


def verdict(told: Mapping[str, Any]) -> str:
    """Whether the repeat with the trial's own seed went as the trial did, in words."""
    difference, others = told["first_difference"], "; ".join(told["other_conditions"])
    if told["identical"]:
        return f"The same seed gave the same metrics bit for bit: {told['milestones']} milestones."
    if difference is None:
        return "The same seed cannot be compared: no milestone with metrics is in both."
    why = others or "the trainer has changed since, or does not repeat itself"
    return (
        f"The same seed differs first at step {difference['step']}: {difference['metric']} "
        f"{difference['before']} then, {difference['now']} now ({why})."
    )
