"""What a run resolved, as `experiment.json` beside the journal: enough to know and to resume it."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, get_type_hints

from autotune.algorithms.names import ELITE, TRAINED
from autotune.errors import UserError
from autotune.space.search_space import SearchSpace
from autotune.storage import manifest as file
from autotune.storage import retention
from autotune.storage.annotated import reader
from autotune.storage.codec import encode
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study import source
from autotune.study.experiment import Experiment
from autotune.study.options import StudyOptions, options_from_json
from autotune.study.space_json import describe, space_from_json
from autotune.study.versions import commit, versions
from autotune.trial import FailurePolicy, Limit, Target
from autotune.trial.plan_text import plan_keys
from autotune.trial.scaling import Scaling

START, START_CONTROLLER = "start", "start_controller"  # what sampler and controller began with


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of a study.

    `options` are those that a resumed study needs; a part that was an object in Python is a name
    like `<f>`. `script` is the Python file that began the study, if it has no recipe. `space`,
    `scaling`, `failure`, `baseline`, `configs` and `canonical` are the experiment's, as JSON types.
    `start` has the documents with which a sampler or controller began, by their keys. `known` says
    of which earlier studies the sampler knows, and has the checksum of the file that has them.
    `plan_keys` are the keys of the trainer's plans with their defaults, from which
    `trial.plan_text` says a trial's plan.
    """

    name: str
    study_id: str
    target: Target
    options: StudyOptions = field(default_factory=StudyOptions)
    train: str = "?"
    train_source: str | None = None
    script: str | None = None
    space: Mapping[str, Any] = field(default_factory=dict)
    scaling: Mapping[str, Any] = field(default_factory=dict)
    max_concurrent_trials: int | None = None
    failure: Mapping[str, Any] = field(default_factory=dict)
    knobs: Sequence[str] = ()
    baseline: Any = None
    configs: Sequence[Any] = field(default_factory=list)
    canonical: Mapping[str, str] = field(default_factory=dict)
    limits: Sequence[Limit] = field(default_factory=list)
    plan_keys: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)
    sampler_chosen_because: str | None = None
    backend_chosen_because: str | None = None
    versions: Mapping[str, str | None] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    git_commit: str | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest of a study folder.

        Raises:
            UserError: there is none, or it is damaged.
        """
        return cls.from_json(file.read(folder), folder)

    @classmethod
    def existing(cls, folder: Path) -> Self | None:
        """The manifest of a folder; None where it has none.

        Raises:
            UserError: it is damaged.
        """
        return cls.read(folder) if file.exists(folder) else None

    @classmethod
    def from_json(cls, data: Mapping[str, Any], folder: Path) -> Self:
        """The manifest that `experiment.json` of this folder says; what it lacks has its default.

        Raises:
            UserError: its target, an option or anything else is damaged.
        """
        start = {name: data[name] for name in (START, START_CONTROLLER) if name in data}
        kept: dict[str, Any] = {"name": folder.name}
        kinds = get_type_hints(cls)
        try:
            for name in _PLAIN:
                if name in data:
                    kept[name] = _read(kinds[name], name, data[name])
            scaling = _read(Scaling, "scaling", kept.get("scaling", {})).decided
            kept["scaling"] = manifest_scaling(scaling)
            failure = file.policy(kept.get("failure", {}), folder)
            kept["failure"] = encode(_read(FailurePolicy, "failure", failure))
            target = _read(Target, "target", data["target"])
            options = options_from_json(data)
            if options.sampler == TRAINED and "weights" not in kept.get("known", {}):
                options = replace(options, sampler=ELITE)  # an older study
            file.check_names(data)
        except (ValueError, TypeError) as error:
            raise UserError(f"{folder / EXPERIMENT_JSON} is damaged: {error}") from None
        return cls(**kept, start=start, target=target, options=options)

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON types, without credentials."""
        own = {name: getattr(self, name) for name in _PLAIN}
        after = {name: own.pop(name) for name in _AFTER_OPTIONS}
        own["target"], own["limits"] = encode(self.target), encode(self.limits)
        return {**own, **self.options.to_json(), **self.start, **after}

    def write(self, folder: Path) -> None:
        """Write `experiment.json`, whole or not at all, and flush it to the disk.

        Raises:
            StudyError: it cannot be written.
        """
        failure = file.stored_policy(self.failure, folder)
        file.write(folder, {**self.to_json(), "failure": failure})

    def search_space(self, folder: Path) -> SearchSpace:
        """The search space, without its constraints, which are code.

        Raises:
            UserError: the manifest of this folder has none that this version knows.
        """
        if not self.space:
            raise UserError(f"{folder / EXPERIMENT_JSON} has no search space")
        try:
            return space_from_json(self.space)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            path = folder / EXPERIMENT_JSON
            raise UserError(f"{path}: its search space cannot be read: {error}") from None


_AFTER_OPTIONS = (
    "known",
    "sampler_chosen_because",
    "backend_chosen_because",
    "versions",
    "machine",
    "git_commit",
)
_PLAIN = (  # what is in the manifest under its own name, in this order
    *(
        "name",
        "study_id",
        "train",
        "train_source",
        "script",
        "space",
        "scaling",
        "max_concurrent_trials",
        "failure",
    ),
    *("knobs", "baseline", "configs", "canonical", "limits", "plan_keys", *_AFTER_OPTIONS),
)


def _read(kind: Any, name: str, value: Any) -> Any:
    """The value of the key `name`, made a `kind`; a ValueError that names the key if it is none."""
    try:
        return reader(kind)(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def resolved(
    experiment: Experiment,
    options: StudyOptions,
    *,
    start: Mapping[str, Any] | None = None,
    known: Mapping[str, Any] | None = None,
    sampler_chosen_because: str | None = None,
    backend_chosen_because: str | None = None,
) -> Manifest:
    """The manifest of a new study.

    Raises:
        UserError: a value of the experiment has no JSON form.
    """
    train = experiment.train
    return Manifest(
        name=experiment.name,
        study_id=uuid.uuid4().hex,
        target=experiment.target,
        options=options_from_json(options.to_json()),
        train=source.name(train),
        train_source=source.checksum(train),
        script=source.script() if not options.recipe else None,
        space=describe(experiment.space),
        scaling=manifest_scaling(experiment.scaling.decided),
        max_concurrent_trials=experiment.scaling.max_concurrent_trials,
        failure=encode(retention.absolute(experiment.failure)),
        knobs=list(experiment.knobs),
        baseline=_given("baseline", experiment.baseline),
        configs=_given("configs", list(experiment.configs)),
        canonical=dict(experiment.canonical),
        limits=list(experiment.limits),
        plan_keys=_given("plan_keys", plan_keys(train)),
        start=dict(start or {}),
        known=dict(known or {}),
        sampler_chosen_because=sampler_chosen_because,
        backend_chosen_because=backend_chosen_because,
        versions=versions(),
        machine={"platform": platform.platform(), "cpus": os.cpu_count()},
        git_commit=commit(),
    )


def manifest_scaling(scaling: Scaling) -> dict[str, Any]:
    """What the manifest says of a scaling: all but how many trials may run at once."""
    made: dict[str, Any] = encode(replace(scaling, max_concurrent_trials=None))
    for name in ("placement_strategy", "accelerator"):
        if getattr(scaling, name) == getattr(Scaling(), name):
            del made[name]  # older manifests do not have it: their studies go on
    return made


def _given(name: str, value: Any) -> Any:
    try:
        return encode(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"Experiment {name}: {error}") from None
