"""What a run resolved, as `experiment.json` beside the journal: enough to know and to resume it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from autotune.backends.recipe_modules import FILE_PREFIX
from autotune.errors import StudyError, UserError
from autotune.space.parameters import Choice, Fixed, Float, Int
from autotune.space.schedule_space import ScheduleSpace
from autotune.space.search_space import SearchSpace
from autotune.storage import checkpoint_files, journal
from autotune.storage.codec import decode_config, encode
from autotune.storage.journal import JOURNAL, RECORD
from autotune.study.experiment import Experiment
from autotune.trial import Reported, Suggested, Target
from autotune.trial.scaling import Scaling

_SAME = ("name", "train", "target", "space", "scaling", "baseline", "configs", "seed")
_SPACE_MODULES = ("autotune.space.parameters", "autotune.space.schedule_space")
_KINDS = {kind.__name__: kind for kind in (Float, Int, Choice, Fixed, ScheduleSpace)}
_DISTRIBUTIONS = {"autotune": "time-to-target"}  # where it has another name than the package
_PACKAGES = ("autotune", "torch", "ray", "optuna", "mlflow", "numpy")


def facts(
    experiment: Experiment, *, seed: int, tracking_uri: str | None, **more: Any
) -> dict[str, Any]:
    """Everything that the run resolved, as JSON types. Credentials are left out."""
    return {
        "name": experiment.name,
        "study_id": uuid.uuid4().hex,
        "train": f"{experiment.train.__module__}.{getattr(experiment.train, '__qualname__', '?')}",
        "target": encode(experiment.target),
        "space": describe(experiment.space),
        "scaling": _scaling(experiment.scaling),
        "max_concurrent_trials": experiment.scaling.max_concurrent_trials,
        "failure": encode(experiment.failure),
        "knobs": list(experiment.knobs),
        "baseline": _given("baseline", experiment.baseline),
        "configs": _given("configs", list(experiment.configs)),
        "seed": seed,
        "tracking_uri": without_credentials(tracking_uri),
        **more,
        "versions": {p: version_of(p) for p in _PACKAGES} | {"python": platform.python_version()},
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "git_commit": _commit(),
    }


def _scaling(scaling: Scaling) -> dict[str, Any]:
    told: dict[str, Any] = encode(replace(scaling, max_concurrent_trials=None))
    if scaling.placement_strategy == Scaling().placement_strategy:
        del told["placement_strategy"]  # older records do not have it: their studies go on
    return told


def _given(name: str, value: Any) -> Any:
    try:
        return encode(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"Experiment {name}: {error}") from None


def describe(space: SearchSpace) -> dict[str, Any]:
    """A search space as JSON types: each entry with its kind and its settings."""

    def entry(value: Any) -> Any:
        if type(value).__module__ not in _SPACE_MODULES:
            return encode(value)
        settings = {f.name: entry(getattr(value, f.name)) for f in fields(value)}
        if isinstance(value, Float) and value.effective is None:
            del settings["effective"]  # older records do not have it: their studies go on
        return {"kind": type(value).__name__, **settings}

    entries = {}
    for name, value in space.entries.items():
        try:
            entries[name] = entry(value)
        except TypeError as error:
            raise UserError(f"the search space's {name}: {error}") from None
    return {"entries": entries, "constraints": [c.text for c in space.constraints]}


def space_of(folder: Path) -> SearchSpace:
    """The search space of a study folder, without its constraints, which are code.

    Raises:
        UserError: there is no study, or its space is not one that this version knows.
    """

    def entry(value: Any) -> Any:
        if not isinstance(value, dict) or value.get("kind") not in _KINDS:
            return decode_config(value)
        kind = _KINDS[value["kind"]]
        settings = {f.name: value[f.name] for f in fields(kind) if f.name in value}
        return kind(**{k: v if k == "when" else entry(v) for k, v in settings.items()})

    held = load(folder)
    try:
        return SearchSpace({n: entry(value) for n, value in held["space"]["entries"].items()})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{folder / RECORD}: its search space cannot be read: {error}") from None


def check(folder: Path, facts: dict[str, Any], resume: bool) -> None:
    """Refuse a folder that holds another study; take over the id of the same one.

    Another study that has no result (its recipe was mistaken, say) gives way.

    Raises:
        UserError: the folder holds another study, or one at all when `resume` is False.
    """
    if not (folder / RECORD).is_file():
        if (folder / JOURNAL).is_file() and (folder / JOURNAL).stat().st_size:
            raise UserError(f"{folder} has a {JOURNAL} but no {RECORD}: choose another folder")
        return
    if journal.held(folder):
        raise UserError(f"another process is running the study in {folder}")
    held = load(folder)
    if not resume:
        raise UserError(f"{folder} holds the study {held['name']!r}: choose another folder")
    for key in _SAME:
        if _anywhere(held.get(key)) == _anywhere(facts[key]):
            continue
        if without_result(folder, held["target"]["metric"]):
            _discard(folder)
            return
        difference = _first_difference(key, held.get(key), facts[key])
        raise UserError(f"{folder} holds another study: its {difference}")
    _check_total(folder, held, facts)
    facts["study_id"] = held["study_id"]
    facts["recipe"] = facts.get("recipe") or held.get("recipe")
    if facts.get("sampler") == held.get("sampler"):
        facts["sampler_chosen_because"] = held.get("sampler_chosen_because")


def _check_total(folder: Path, held: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Refuse fewer trials in all than there are."""
    asked = facts.get("trials")
    if asked is None or asked >= held.get("trials", asked):
        return
    known = [e for e in journal.entries(folder) if isinstance(e, Suggested) and e.repeats is None]
    if asked < len(known):
        raise UserError(
            f"{folder} has {len(known)} trials already: their number (--trials) is a total and "
            f"must be at least {len(known)} but got {asked}"
        )


def write(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write `experiment.json`, whole or not at all, onto the disk itself."""
    try:
        with checkpoint_files.writing(str(folder), RECORD) as file:
            file.write((json.dumps(facts, indent=2) + "\n").encode())
    except OSError as error:
        raise StudyError(f"cannot write {folder / RECORD}: {error.strerror}") from None


def load(folder: Path) -> dict[str, Any]:
    """The `experiment.json` of a study folder.

    Raises:
        UserError: there is none, or it is damaged.
    """
    try:
        held = json.loads((folder / RECORD).read_text())
    except FileNotFoundError:
        raise UserError(f"{folder} is not a study folder: it has no {RECORD}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / RECORD} cannot be read: {error}") from None
    if not isinstance(held, dict) or "study_id" not in held or "target" not in held:
        raise UserError(f"{folder / RECORD} is not a study's record")
    return held


def target(folder: Path) -> Target:
    """The target of a study folder."""
    return Target(**load(folder)["target"])


def without_credentials(uri: str | None) -> str | None:
    """`uri` without the user, password and query, where a database's password may stand."""
    if uri is None or "://" not in uri:
        return uri
    scheme, _, rest = uri.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _anywhere(value: Any) -> Any:
    """A trainer's name without where its recipe's file lies: a study may be moved."""
    return (
        re.sub(rf"^{FILE_PREFIX}(\w+)_[0-9a-f]{{12}}\.", r"\1.", value)
        if (isinstance(value, str))
        else value
    )


def _first_difference(path: str, held: Any, new: Any) -> str:
    if isinstance(held, dict) and isinstance(new, dict):
        for key in [*held, *new]:
            if held.get(key) != new.get(key):
                return _first_difference(f"{path}.{key}", held.get(key), new.get(key))
    return f"{path} is {held!r:.80} and not {new!r:.80}"


def without_result(folder: Path, metric: str) -> bool:
    """Whether nothing was learned in this study: no trial ever reported the metric."""
    if not (folder / JOURNAL).is_file():
        return True
    reports = [e.report for e in journal.entries(folder) if isinstance(e, Reported)]
    return not any(metric in report.metrics for report in reports)


def _discard(folder: Path) -> None:
    for name in (RECORD, JOURNAL, "mlflow.json"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def version_of(package: str) -> str | None:
    """The installed version of a package, None where it is not installed."""
    try:
        return metadata.version(_DISTRIBUTIONS.get(package, package))
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607 (the user's own git)
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
