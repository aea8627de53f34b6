"""Whether a run goes on with the study in its folder: what two manifests may not differ in."""

from __future__ import annotations

import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.algorithms.ranking.repeats import PROBE, all_failed
from autotune.backends.recipe_modules import FILE_PREFIX
from autotune.errors import UserError
from autotune.storage import driver_lock, journal, long_text
from autotune.storage.driver_lock import in_use
from autotune.storage.journal import JOURNAL, Closed, Opened
from autotune.storage.manifest import EXPERIENCE, EXPERIMENT_JSON
from autotune.study.experiment import Experiment
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.study.space_json import describe, space_from_json
from autotune.trial import Reported, Suggested, fold

_FILES = ("mlflow.json", EXPERIENCE, EXPERIMENT_JSON, JOURNAL)
_FOLDERS = ("checkpoints", long_text.ERRORS)
_SAME = ("name", "train", "target", "limits", "space", "scaling", "baseline", "configs", "seed")


def continued(new: Manifest, existing: Manifest | None, folder: Path, resume: bool) -> Manifest:
    """The manifest with which the study in the folder goes on: the new one, with the old id.

    One that has no result gives way, if it is another one or its trainer has been mended since. One
    of which every trial failed does so, too, and is kept in a folder within this one.

    Raises:
        UserError: the folder holds another study, or one at all when `resume` is False.
    """
    if existing is None:
        if (folder / JOURNAL).is_file() and (folder / JOURNAL).stat().st_size:
            raise UserError(
                f"{folder} has a {JOURNAL} but no {EXPERIMENT_JSON}: choose another folder"
            )
        return new
    if driver_lock.is_held(folder / JOURNAL):
        raise UserError(in_use(folder))
    if not resume:
        raise UserError(f"{folder} holds the study {existing.name!r}: choose another folder")
    difference, source_now = _difference(existing, new), new.train_source
    mended = existing.train_source not in (None, source_now)
    if difference or mended:
        if without_result(folder, existing.target.metric):
            _discard(folder)
            return new
        if failed := _all_failed(folder):
            kept = _set_aside(folder)
            said = f"{folder}: all {failed} trials had failed, and what failed has changed since"
            print(f"{said}: the study begins anew (before: {kept})", file=sys.stderr, flush=True)
            return new
    if difference:
        another = "choose another folder (--out, out=)"
        raise UserError(f"{folder} holds another study: its {difference}; {another}")
    check_total(folder, existing.options.trials, new.options.trials)
    of = new.options if new.options.recipe else existing.options
    same_sampler = new.options.sampler == existing.options.sampler
    return replace(
        new,
        study_id=existing.study_id,
        train_source=existing.train_source or source_now,
        script=new.script or existing.script,
        options=replace(new.options, recipe=of.recipe, recipe_arguments=of.recipe_arguments),
        sampler_chosen_because=(existing if same_sampler else new).sampler_chosen_because,
    )


def in_its_space(experiment: Experiment, existing: Manifest | None) -> Experiment:
    """The experiment in the space of the study that it goes on with, if only couplings were added.

    Studies from before a recipe's learning rate followed its batch size mean another rate by the
    same point, so they keep it.
    """
    if existing is None:
        return experiment
    before, now = existing.to_json()["space"], describe(experiment.space)
    if before == now or before != _without_references(now):
        return experiment
    space = replace(space_from_json(before), constraints=experiment.space.constraints)
    return replace(experiment, space=space)


def _without_references(space: dict[str, Any]) -> dict[str, Any]:
    """A description of the space without the couplings that have a reference."""
    entries = {name: dict(entry) for name, entry in space["entries"].items()}
    for entry in entries.values():
        if entry.pop("reference", None) is not None:
            entry |= {"follows": None, "rule": "linear"}
    return {**space, "entries": entries}


def with_result(folder: Path, existing: Manifest | None) -> Manifest | None:
    """The manifest of a study that has any result: what was decided for it stays."""
    if existing is None or without_result(folder, existing.target.metric):
        return None
    return existing


def without_result(folder: Path, metric: str) -> bool:
    """Whether nothing was learned in this study: no trial ever reported a number as the metric."""
    if not (folder / JOURNAL).is_file():
        return True
    reports = [e.report for e in journal.entries(folder) if isinstance(e, Reported)]
    return not any(math.isfinite(report.metrics.get(metric, math.nan)) for report in reports)


def check_mirrored(study: str, folder: Path, options: StudyOptions) -> None:
    """Check that no driver elsewhere works on the study, where MLflow keeps a copy of it.

    Where the folder has no journal yet, no driver may be at work on a study of its name. Where it
    has one, its driver may have been killed just now; what counts is whether the study has gone on
    elsewhere since.

    Raises:
        UserError: a driver is, it has, or there is no MLflow server to ask.
    """
    if not options.mirror:
        return
    from autotune.tracking import mirror
    from autotune.tracking.uris import check_server, is_server

    if not (folder / JOURNAL).is_file():
        check_server(options.tracking_uri)
        mirror.refuse_second(str(options.tracking_uri), study)
    elif is_server(options.tracking_uri):
        mirror.refuse_stale(str(options.tracking_uri), folder)


def _all_failed(folder: Path) -> int:
    """How many trials the study has, if each of them has failed; else 0."""
    events = [e for e in journal.entries(folder) if not isinstance(e, Opened | Closed)]
    trials = fold(events).values()
    return sum(t.kind != PROBE for t in trials) if all_failed(trials) else 0


def _difference(existing: Manifest, new: Manifest) -> str:
    """What makes them two studies; empty if they are one."""
    before, now = existing.to_json(), new.to_json()
    for key in _SAME:
        if _without_place(before[key]) != _without_place(now[key]):
            return _first_difference(key, before[key], now[key])
    return ""


def check_total(folder: Path, before: int, trials: int) -> None:
    """Refuse fewer trials in all than there are, of which `before` were planned.

    Raises:
        UserError: there are more already.
    """
    if trials >= before:
        return
    suggested = [e for e in journal.entries(folder) if isinstance(e, Suggested)]
    known = [e for e in suggested if e.repeats is None and e.kind != PROBE]
    if trials < len(known):
        raise UserError(
            f"{folder} has {len(known)} trials already: their number (--trials) is a total and "
            f"must be at least {len(known)} but got {trials}"
        )


def _without_place(value: Any) -> Any:
    """A trainer's name without where its recipe's file lies: a study may be moved."""
    if not isinstance(value, str):
        return value
    return re.sub(rf"^{FILE_PREFIX}(\w+)_[0-9a-f]{{12}}\.", r"\1.", value)


def _first_difference(path: str, before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *now]:
            if before.get(key) != now.get(key):
                return _first_difference(f"{path}.{key}", before.get(key), now.get(key))
    return f"{path} is {before!r:.80} and not {now!r:.80}"


def _discard(folder: Path) -> None:
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def _set_aside(folder: Path) -> Path:
    """Move the study into a folder within its own, where it can still be read; returns that one."""
    number = 1
    while (kept := folder / f"failed-{number}").exists():
        number += 1
    try:
        kept.mkdir()
        for name in (*_FOLDERS, *_FILES):  # the journal last: until then it is the study's
            if (folder / name).exists():
                (folder / name).rename(kept / name)
    except OSError as error:
        raise UserError(f"cannot move the study in {folder} to {kept}: {error.strerror}") from None
    return kept
