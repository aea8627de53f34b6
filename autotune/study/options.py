"""The options of a study, each defined once: of them come `run`, the command line and the manifest.

A new option is a field of `StudyOptions` and the code that uses it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from autotune.algorithms.pruners.rules import Pruner
from autotune.backends.protocol import Pool
from autotune.errors import UserError, shown
from autotune.study.option import (
    BACKEND,
    CPUS,
    FUNCTION,
    GPUS,
    NAMED,
    PATH,
    POOL,
    SAMPLER,
    SECONDS,
    SEEDS,
    SETTINGS,
    SHARE,
    TEXT,
    TEXTS,
    YES_OR_NO,
    Flag,
    Option,
    absolute,
    backend_name,
    name_of,
    number,
    option,
    share,
    whole,
    whole_number,
)
from autotune.study.recipe_arguments import pair
from autotune.tracking.uris import without_credentials
from autotune.trial import Change, Event, Fork, Target, Trial

Controller = Callable[[Trial, Sequence[Trial], Target], Change | Fork | None]
Watch = Callable[[Event, Mapping[int, Trial]], None]


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """How a study is run: the keyword arguments of `autotune.run`, which explains each.

    Raises:
        UserError: an option is outside its range, or two exclude each other.
    """

    trials: int = option(
        20,
        kept=True,
        rule=whole(1),
        flag=Flag("--trials", "search", "total number of trials (20)", "N", whole_number),
    )
    sampler: str | Any = option(
        "auto",
        kept=True,
        rule=SAMPLER,
        as_json=name_of,
        flag=Flag(
            "--sampler",
            "search",
            "auto (by trials and baseline), convergence, tpe, widening, policy (or policy:actor, "
            "policy:reinforce, policy:ppo), random, qmc, gp, cmaes, nsga2, or an Optuna sampler's "
            "dotted path with keyword arguments",
            "NAME",
        ),
    )
    start_from: str | Path | None = option(
        None,
        kept=True,
        rule=PATH,
        as_json=absolute,
        flag=Flag(
            "--from",
            "search",
            "an earlier study whose policy to start from (sampler policy, controller policy, or "
            "both)",
            "DIR",
            Path,
        ),
    )
    pruner: str | Pruner = option(
        "auto",
        kept=True,
        rule=NAMED,
        as_json=name_of,
        flag=Flag(
            "--pruner",
            "search",
            "auto (convergence; for a target without a value bottom_at_same_time), convergence "
            "(slower_than_best and forecast), slower_than_best, forecast, asha, hyperband, "
            "bottom_at_same_time, each of these with or without keyword arguments, as in "
            "slower_than_best(factor=1.25); none, module:function or file.py:function",
            "NAME",
        ),
    )
    controller: str | Controller | None = option(
        None,
        kept=True,
        rule=NAMED,
        as_json=name_of,
        flag=Flag(
            "--controller",
            "search",
            "regulator, policy, pbt, each with or without keyword arguments, as in "
            "pbt(interval=2); module:function or file.py:function (none)",
            "NAME",
        ),
    )
    out: str | Path | None = option(
        None,
        rule=PATH,
        flag=Flag("--out", "search", "the study folder (studies/NAME)", "DIR", Path),
    )
    workers: int | None = option(
        None,
        kept=True,
        rule=whole(1),
        flag=Flag(
            "--workers", "search", "ranks of one trial (as the recipe says)", "N", whole_number
        ),
    )
    cpus_per_worker: float | None = option(
        None,
        kept=True,
        rule=CPUS,
        flag=Flag(
            "--cpus-per-worker", "search", "CPU cores of a rank (as the recipe says)", "N", number
        ),
    )
    gpus_per_worker: float | None = option(
        None,
        kept=True,
        rule=GPUS,
        flag=Flag(
            "--gpus-per-worker",
            "search",
            "GPUs of a rank, 0 for none (as the recipe says; where it says nothing 1, if the "
            "cluster has enough)",
            "N",
            number,
        ),
    )
    seed: int = option(
        0,
        kept=True,
        rule=whole(0),
        flag=Flag("--seed", "search", "the study's seed (0)", "N", whole_number),
    )
    repeats: int = option(
        0,
        kept=True,
        rule=whole(0),
        flag=Flag(
            "--repeats",
            "search",
            "confirm the best 3 and the baseline on N fresh seeds (0)",
            "N",
            whole_number,
        ),
    )
    racing: float | None = option(
        None,
        kept=True,
        unsaid=0.0,
        rule=SHARE,
        flag=Flag(
            "--racing",
            "search",
            "the share of training that may run the leader again on fresh seeds, in the second "
            "half of the search (in a resumed study as before; in a new one 0.2 for 100 trials or "
            "more by convergence, else 0)",
            "SHARE",
            share,
        ),
    )
    recipe_arguments: Mapping[str, str] | None = option(
        None,
        kept=True,
        rule=TEXTS,
        flag=Flag(
            "--with",
            "search",
            "an argument of the recipe, as in --with data=DIR; may be repeated",
            "KEY=VALUE",
            pair,
            repeated=True,
        ),
    )
    mirror: bool = option(
        False,
        kept="mirrored",
        rule=YES_OR_NO,
        flag=Flag(
            "--mirror",
            "tracking",
            "copy what resume needs to MLflow, and resume the study that MLflow has",
        ),
    )
    mix_hardware: bool = option(
        False,
        kept=True,
        rule=YES_OR_NO,
        flag=Flag(
            "--mix-hardware",
            "tracking",
            "rank times on unequal hardware together (default: only on equal hardware)",
        ),
    )
    time_limit: float | None = option(
        None,
        rule=SECONDS,
        flag=Flag("--time-limit", "place", "end the study after this time", "10m"),
    )
    wait_idle: float | None = option(
        None,
        rule=SECONDS,
        flag=Flag(
            "--wait-idle",
            "place",
            "before confirmations wait so long, at most, for a machine on which nothing else runs "
            "(warn only)",
            "10m",
        ),
    )
    tracking_uri: str | None = option(
        None,
        kept=True,
        rule=TEXT,
        as_json=without_credentials,
        flag=Flag(
            "--tracking-uri", "place", "MLflow's store (default: in the study folder)", "URI"
        ),
    )
    max_concurrent_trials: int | None = option(
        None,
        kept="concurrent_trials",
        rule=whole(1),
        flag=Flag(
            "--max-concurrent-trials",
            "place",
            "trials at once (as many as fit); 1 with --local: in this very process",
            "N",
            whole_number,
        ),
    )
    backend: str | Pool = option(
        "auto",
        kept=True,
        unsaid="ray",
        rule=BACKEND,
        as_json=lambda value: value if isinstance(value, str) else "auto",
        flag=Flag(
            "--backend",
            "place",
            "ray, local (processes of this machine, without a cluster), or auto: local for trials "
            "of one rank without GPUs and --ray-address (auto; in a resumed study as before)",
            "NAME",
            backend_name,
        ),
    )
    ray_address: str | None = option(
        None,
        kept=True,
        rule=TEXT,
        flag=Flag("--ray-address", "place", "a Ray cluster (default: start Ray here)", "ADDR"),
    )
    top: int = option(
        3,
        kept=True,
        rule=whole(1),
        flag=Flag(
            "--top", "confirm", "how many of the fastest configurations (3)", "K", whole_number
        ),
    )
    seeds: Sequence[int] = option((), rule=SEEDS)
    search: bool = option(True, rule=YES_OR_NO)
    resume: bool = option(True, rule=YES_OR_NO)
    recipe: str | None = option(None, kept=True, rule=TEXT)
    progress: bool = option(True, rule=YES_OR_NO)
    watch: Watch | None = option(None, rule=FUNCTION)
    pool: Pool | None = option(None, rule=POOL)

    def __post_init__(self) -> None:
        for one in options():
            value, rule = getattr(self, one.name), one.rule
            if rule is None or (value is None and one.default is None):
                continue
            if not rule.allows(value):
                raise UserError(f"{one.name} must be {rule.text} but got {shown(value)}")
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
        yield Option(made.name, made.default, **settings)
