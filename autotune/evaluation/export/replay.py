"""Replay: an exported trial trained again, with its own seed to compare and fresh ones to measure.

A replay is a study of one configuration: it has a journal, MLflow runs, and can be resumed. Its
first trial has the exported trial's seed, so that on the same machine with the same versions the
losses are equal bit for bit; each trial runs alone, so that no other one affects its time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import UserError
from autotune.evaluation.export.export import FORMAT, TRIAL
from autotune.space.search_space import Fixed, SearchSpace
from autotune.storage.codec import decode_entries
from autotune.study import recipes
from autotune.study.driver.settings import trial_seed
from autotune.study.experiment import Experiment
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.trial import Change, FailurePolicy, Hardware, Params, Report, State, Target, Trial
from autotune.trial.scaling import Scaling


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
    recipe: str | None
    recipe_arguments: Mapping[str, str] | None
    python_path: tuple[str, ...]
    versions: Mapping[str, Any]
    forks: tuple[int, ...] = ()
    turned: frozenset[int] = frozenset()


def read(folder: Path) -> Exported:
    """The export in `folder`.

    Raises:
        UserError: it is not an export, of a later version, or damaged.
    """
    try:
        content = json.loads((folder / TRIAL).read_bytes())
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise UserError(f"{folder} is not an export: it has no {name}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} cannot be read: {error}") from None
    if not isinstance(content, dict) or content.get("autotune_export") != FORMAT:
        raise UserError(f"{folder / TRIAL} is not of an export that this version reads ({FORMAT})")
    try:
        train, python_path = _place(content)
        recipe, arguments = _recipe(content)
        return Exported(
            folder=folder.resolve(),
            study=str(content["study"]),
            trial=_trial(content, decode_entries(config)),
            target=Target(**content["target"]),
            scaling=Scaling(**{**content["scaling"], "max_concurrent_trials": 1}),
            failure=FailurePolicy(**content["failure"]),
            train=train,
            recipe=recipe,
            recipe_arguments=arguments,
            python_path=python_path,
            versions=dict(content["versions"]),
            forks=tuple(int(part["from_step"]) for part in content.get("lineage", ())[1:]),
            turned=frozenset(made["step"] for made in content.get("turned") or ()),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        line = str(error).partition("\n")[0]
        raise UserError(f"{folder} is damaged: {type(error).__name__}: {line}") from None


def _place(content: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    """The trainer's name, and the folders that it is imported from."""
    train, folders = content["train"], content["python_path"]
    if not isinstance(train, str | None):
        raise TypeError(f"train must be text or null, got {train!r}")
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        raise TypeError(f"python_path must be a list of text, got {folders!r}")
    return train, tuple(folders)


def _recipe(content: Mapping[str, Any]) -> tuple[str | None, Mapping[str, str] | None]:
    """The recipe and its arguments; earlier exports have none of these."""
    recipe, arguments = content.get("recipe"), content.get("recipe_arguments")
    if not isinstance(recipe, str | None):
        raise TypeError(f"recipe must be text or null, got {recipe!r}")
    if arguments is None:
        return recipe, None
    if not isinstance(arguments, dict) or not all(isinstance(v, str) for v in arguments.values()):
        raise TypeError(f"recipe_arguments must be an object of texts, got {arguments!r}")
    return recipe, arguments


def _trial(content: Mapping[str, Any], config: Mapping[str, Any]) -> Trial:
    return Trial(
        number=content["number"],
        config=config,
        kind=content["kind"],
        seed=content["seed"],
        state=State(content["state"]),
        reason=content["reason"],
        seconds=float(content["seconds"]),
        reports=tuple(
            Report(r["step"], r["seconds"], {k: float(v) for k, v in r["metrics"].items()})
            for r in content["reports"]
        ),
        changes=tuple((made["step"], Change(**made["change"])) for made in content["changes"]),
        attempts=content["attempts"],
        hardware=Hardware(**content["hardware"]),
    )


# --- the study ------------------------------------------------------------------------------------


class SamePoint:
    """A sampler for a space in which everything is fixed."""

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        return {}


@dataclass(frozen=True)
class RecordedChanges:
    """A controller that repeats recorded changes at the same steps."""

    changes: Mapping[int, Change]

    def __call__(self, trial: Trial, others: Sequence[Trial], target: Target) -> Change | None:
        return self.changes.get(trial.reports[-1].decided_at)


def experiment(exported: Exported) -> Experiment:
    """The study of the exported configuration alone, one trial at a time.

    Raises:
        UserError: the trainer cannot be found again; what to do about it.
    """
    named, where = exported.train, exported.folder / TRIAL
    remedy = f'set "train" in {where} to module:function or /path/file.py:function'
    if named is None and not exported.recipe:
        raise UserError(f"the trainer was part of a script and cannot be found again: {remedy}")
    sys.path[:0] = [folder for folder in exported.python_path if folder not in sys.path]
    try:
        train = recipes.find(named, "trainer") if named is not None else _of_recipe(exported)
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


def _of_recipe(exported: Exported) -> Callable[[dict[str, Any]], Any]:
    """The trainer of the recipe, which made it: it has no name of its own."""
    made = recipes.load(recipes.moved(str(exported.recipe)), exported.recipe_arguments)
    return made.train


def options(exported: Exported, repeats: int) -> StudyOptions:
    """The options of a replay with so many repeats in all."""
    if repeats < 1:
        raise UserError(f"--repeats must be a whole number >= 1 but got {repeats}")
    trial = exported.trial
    return StudyOptions(
        trials=repeats,
        sampler=SamePoint(),
        pruner="none",
        controller=RecordedChanges(dict(trial.changes)) if trial.changes else None,
        seed=trial.seed,
        seeds=seeds(trial.seed, repeats),
        recipe=str(exported.folder / TRIAL),
    )


def seeds(first: int, count: int) -> tuple[int, ...]:
    """The trial's own seed, then fresh ones, all different; a longer list begins with a shorter.

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


def source(manifest: Manifest) -> Path | None:
    """The export that a study replays, by its manifest; None if it is not a replay."""
    recipe = Path(manifest.options.recipe or "")
    return recipe.parent if recipe.name == TRIAL else None
