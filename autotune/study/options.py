"""The options of a study, each defined once: of them come `run`, the command line and the manifest.

A new option is a field of `StudyOptions`, the code that uses it and, if it has one, its flag in
`study.flags`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from autotune.algorithms.names import CONTROLLERS, FORKING
from autotune.algorithms.pruners.rules import PRUNERS, Pruner
from autotune.algorithms.samplers import optuna_names
from autotune.backends.protocol import Pool
from autotune.errors import UserError, shown
from autotune.study.flags import FLAGS, duration
from autotune.study.option import (
    AUTO_OR_OFF,
    BACKEND,
    BACKENDS,
    CPUS,
    FOLDER_OR_OFF,
    FUNCTION,
    GPUS,
    NAMED,
    OFF,
    PATH,
    PATHS,
    POOL,
    SAMPLER,
    SECONDS,
    SEEDS,
    SETTINGS,
    SHARE,
    TEXT,
    TEXTS,
    YES_OR_NO,
    Option,
    absolute,
    auto_or_off,
    folder_or_off,
    name_of,
    named,
    one_or_tuple,
    option,
    stored_folder_or_off,
    whole,
)
from autotune.tracking.uris import without_credentials
from autotune.trial import Change, Event, Fork, Target, Trial

Controller = Callable[[Trial, Sequence[Trial], Target], Change | Fork | None]
Watch = Callable[[Event, Mapping[int, Trial]], None]

SAMPLER_NAMES = optuna_names.NAMES
PRUNER_NAMES = ("auto", *PRUNERS)
CONTROLLER_NAMES = (*CONTROLLERS, *FORKING, "none")


def _seconds(value: Any) -> Any:
    """Seconds, also of a text as on the command line."""
    return duration(value) if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """How a study is run: the keyword arguments of `autotune.run`, which explains each.

    Raises:
        UserError: an option is outside its range, or two exclude each other.
    """

    trials: int = option(20, kept=True, rule=whole(1))
    sampler: str | Any = option(
        "auto", kept=True, rule=SAMPLER, as_json=name_of, meant=named(SAMPLER_NAMES)
    )
    start_from: str | Path | Sequence[str | Path] | None = option(
        None, kept=True, rule=PATHS, as_json=absolute, meant=one_or_tuple
    )
    experience: str | Path | None = option(
        None, kept=True, rule=FOLDER_OR_OFF, as_json=stored_folder_or_off, meant=folder_or_off
    )
    pruner: str | Pruner = option(
        "auto", kept=True, rule=NAMED, as_json=name_of, meant=named(PRUNER_NAMES)
    )
    controller: str | Controller | None = option(
        None, kept=True, rule=NAMED, as_json=name_of, meant=named(CONTROLLER_NAMES)
    )
    out: str | Path | None = option(None, rule=PATH)
    workers: int | None = option(None, kept=True, rule=whole(1))
    cpus_per_worker: float | None = option(None, kept=True, rule=CPUS)
    gpus_per_worker: float | None = option(None, kept=True, rule=GPUS)
    seed: int = option(0, kept=True, rule=whole(0))
    repeats: int = option(0, kept=True, rule=whole(0))
    racing: float | None = option(None, kept=True, unsaid=0.0, rule=SHARE)
    stages: str = option("auto", kept=True, unsaid=OFF, rule=AUTO_OR_OFF, meant=auto_or_off)
    shared_beginnings: str = option(
        "auto", kept=True, unsaid=OFF, rule=AUTO_OR_OFF, meant=auto_or_off
    )
    recipe_arguments: Mapping[str, str] | None = option(None, kept=True, rule=TEXTS)
    mirror: bool = option(False, kept="mirrored", rule=YES_OR_NO)
    mix_hardware: bool = option(False, kept=True, rule=YES_OR_NO)
    time_limit: float | str | None = option(None, rule=SECONDS, meant=_seconds)
    wait_idle: float | str | None = option(None, rule=SECONDS, meant=_seconds)
    tracking_uri: str | None = option(None, kept=True, rule=TEXT, as_json=without_credentials)
    max_concurrent_trials: int | None = option(None, kept="concurrent_trials", rule=whole(1))
    backend: str | Pool = option(
        "auto",
        kept=True,
        unsaid="ray",
        rule=BACKEND,
        meant=named(BACKENDS),
    )
    ray_address: str | None = option(None, kept=True, rule=TEXT)
    top: int = option(3, kept=True, rule=whole(1))
    seeds: Sequence[int] = option((), rule=SEEDS)
    search: bool = option(True, rule=YES_OR_NO)
    resume: bool = option(True, rule=YES_OR_NO)
    recipe: str | None = option(None, kept=True, rule=TEXT)
    progress: bool = option(True, rule=YES_OR_NO)
    watch: Watch | None = option(None, rule=FUNCTION)
    pool: Pool | None = option(None, rule=POOL)

    def __post_init__(self) -> None:
        for one in options():
            value, rule = _meant(one, getattr(self, one.name)), one.rule
            object.__setattr__(self, one.name, value)
            if rule is None or (value is None and one.default is None):
                continue
            if not rule.allows(value):
                raise UserError(f"{one.name} must be {rule.text} but got {shown(value)}")
        if not isinstance(self.backend, str):
            object.__setattr__(self, "pool", self.backend)
            object.__setattr__(self, "backend", "auto")
        if self.backend == "local" and self.ray_address is not None:
            raise UserError(
                f"backend 'local' uses no cluster, but ray_address is {self.ray_address!r}"
            )
        if self.seeds and (self.repeats or self.racing):
            raise UserError(
                "repeats confirm a search, but with seeds all trials are repeats already"
            )
        if self.seeds and len(self.seeds) < self.trials:
            raise UserError(
                f"seeds must be one for each of {self.trials} trials but got {len(self.seeds)}"
            )

    def folder(self, study: str) -> Path:
        """The folder of the study of this name."""
        return Path(self.out) if self.out is not None else Path("studies") / study

    @property
    def sources(self) -> tuple[Path, ...]:
        """The studies of `start_from`."""
        given = self.start_from
        if given is None:
            return ()
        several = given if isinstance(given, tuple) else (given,)
        return tuple(Path(one) for one in several)

    def to_json(self) -> dict[str, Any]:
        """What the manifest says of the options, as JSON types; credentials are left out."""
        kept = [one for one in options() if one.key is not None]
        return {str(o.key): o.as_json(getattr(self, o.name)) for o in kept}


def options_from_json(data: Mapping[str, Any]) -> StudyOptions:
    """The options that a manifest has; parts that were objects in Python are names like `<f>`.

    Raises:
        UserError: a value is outside its range.
    """
    kept = [one for one in options() if one.key is not None]
    return StudyOptions(**{o.name: data.get(str(o.key), o.unsaid) for o in kept})


def _meant(option: Option, value: Any) -> Any:
    try:
        return option.meant(value)
    except ValueError as error:
        raise UserError(f"{option.name} {error}") from None


@functools.cache
def options() -> tuple[Option, ...]:
    """All options of a study, in the order of the command line."""
    return tuple(_options())


def _options() -> Iterator[Option]:
    for made in fields(StudyOptions):
        assert made.default is not MISSING, "an option has a default"
        settings = dict(made.metadata[SETTINGS])
        kept = settings.pop("kept")
        settings["key"] = (made.name if kept is True else kept) or None
        settings.setdefault("unsaid", made.default)
        settings["flag"] = FLAGS.get(made.name)
        yield Option(made.name, made.default, **settings)
