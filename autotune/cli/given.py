"""What a command was given, as frozen values: made of what argparse read by `arguments`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from autotune.errors import UserError
from autotune.study.option import Option, one_or_tuple
from autotune.study.options import StudyOptions, options

_T = TypeVar("_T")


@dataclass(frozen=True)
class RunArguments:
    """What `autotune run` was given."""

    recipe: str
    options: StudyOptions
    register: str | None
    json: bool


@dataclass(frozen=True)
class TryArguments:
    """What `autotune try` was given; of the options it takes those of a trial's size."""

    recipe: str
    options: StudyOptions
    pdb: bool
    json: bool


@dataclass(frozen=True)
class ResumeArguments:
    """What `autotune resume` was given; `options` has the study's options that were."""

    folder: Path
    options: Mapping[str, Any]
    from_mlflow: str | None
    register: str | None
    json: bool


@dataclass(frozen=True)
class ConfirmArguments:
    """What `autotune confirm` was given."""

    folder: Path
    options: Mapping[str, Any]
    json: bool


@dataclass(frozen=True)
class ReplayArguments:
    """What `autotune replay` was given."""

    export: Path
    options: Mapping[str, Any]
    json: bool


@dataclass(frozen=True)
class ExperienceArguments:
    """What `autotune experience` was given; of the options it takes the folder."""

    action: str
    names: tuple[str, ...]
    mlflow: str | None
    options: Mapping[str, Any]
    json: bool


@dataclass(frozen=True)
class TrainPolicyArguments:
    """What `autotune train-policy` was given."""

    data: Sequence[Path]
    experience_folder: str | None
    weights: Path
    minutes: float | None
    studies: int | None
    training_seed: int


@dataclass(frozen=True)
class SubmitArguments:
    """What `autotune submit` was given; `options` are those of the study."""

    recipe: str
    options: StudyOptions
    register: str | None
    address: str | None
    follow: bool
    driver_cpus: float
    driver_resources: str | None
    pip: Path | None
    env: tuple[str, ...]
    json: bool


def _collected(option: Option, value: Any) -> Any:
    """The value of an option, of all items that were given one by one.

    Raises:
        UserError: one was given twice.
    """
    assert option.flag is not None
    if option.flag.several:
        return one_or_tuple(value)
    if not option.flag.repeated:
        return value
    made: dict[str, Any] = {}
    for name, item in value:
        if name in made:
            raise UserError(f"{option.flag.name} {name} is given twice")
        made[name] = item
    return made


def taken(kind: type[_T], given: argparse.Namespace) -> _T:
    """What argparse read, as a frozen value of this kind.

    Raises:
        UserError: an option of the study is outside its range.
    """
    own = [f.name for f in fields(cast("type[RunArguments]", kind)) if f.name != "options"]
    values = {name: getattr(given, name) for name in own}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    named = [(o, getattr(given, o.name, None)) for o in options() if o.flag is not None]
    chosen = {o.name: _collected(o, value) for o, value in named if value is not None}
    checked = StudyOptions(**chosen)
    whole = kind in (RunArguments, SubmitArguments, TryArguments)
    make = cast("Callable[..., _T]", kind)
    return make(**values, options=checked if whole else chosen)
