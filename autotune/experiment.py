"""An experiment: everything that a study is about, as one value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from autotune.space import SearchSpace
from autotune.trial import KNOBS, FailurePolicy, Target

PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True)
class Scaling:
    """What one trial runs on, in Ray's words.

    Args:
        num_workers: ranks of one trial.
        cpus_per_worker: CPU cores of one rank; whole numbers give it cores of its own.
        gpus_per_worker: GPUs of one rank. A fraction shares a GPU between trials: such trials
            are stamped `shared` and never ranked against unshared ones.
        max_concurrent_trials: an upper bound; by default as many as the cluster holds, also
            when it grows or shrinks.
        placement_strategy: `PACK`: a trial is on one node where it fits on one, else on several;
            `SPREAD`: on as many nodes as there are; `STRICT_PACK`: on one node or not at all;
            `STRICT_SPREAD`: each worker on another node or not at all.

    Raises:
        ValueError: a number outside its range, named with its value.
    """

    num_workers: int = 1
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    max_concurrent_trials: int | None = None
    placement_strategy: str = "PACK"

    def __post_init__(self) -> None:
        _whole("num_workers", self.num_workers)
        if self.placement_strategy not in PLACEMENTS:
            known = ", ".join(PLACEMENTS)
            raise ValueError(
                f"Scaling placement_strategy must be one of {known} "
                f"but got {self.placement_strategy!r}"
            )
        if self.max_concurrent_trials is not None:
            _whole("max_concurrent_trials", self.max_concurrent_trials)
        for name, value in (
            ("cpus_per_worker", self.cpus_per_worker),
            ("gpus_per_worker", self.gpus_per_worker),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"Scaling {name} must be a number >= 0 but got {value!r}")
            if value > 1 and value != int(value):
                raise ValueError(f"Scaling {name} above 1 must be whole but got {value!r}")
        if self.cpus_per_worker == 0:
            raise ValueError("Scaling cpus_per_worker must be more than 0 but got 0")

    @property
    def shared(self) -> bool:
        """Whether ranks of different trials may run on the same core or GPU."""
        return self.cpus_per_worker < 1 or 0 < self.gpus_per_worker < 1


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"Scaling {name} must be a whole number >= 1 but got {value!r}")


@dataclass(frozen=True)
class Experiment:
    """What is tuned: a name, a trainer, a search space and a target.

    Args:
        name: the study's name, also of its folder and its MLflow experiment.
        train: the trainer, a generator function of its configuration (see `Milestone`), or a
            function that calls `autotune.report`.
        space: what is searched.
        target: the metric and value that trials race to.
        scaling: what one trial runs on.
        baseline: the configuration to beat, run first; None for no baseline.
        configs: further configurations to run before the search begins.
        failure: what to do about workers that die, hang or fail.
        knobs: what a controller may turn while a trial runs: some of `lr`, `batch_size`,
            `momentum`.

    Raises:
        ValueError, TypeError: naming the argument, its value and what is allowed.
    """

    name: str
    train: Callable[[dict[str, Any]], Any]
    space: SearchSpace
    target: Target
    _: KW_ONLY
    scaling: Scaling = field(default_factory=Scaling)
    baseline: Mapping[str, Any] | None = None
    configs: Sequence[Mapping[str, Any]] = ()
    failure: FailurePolicy = field(default_factory=FailurePolicy)
    knobs: Sequence[str] = ("lr",)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(
            r"[A-Za-z0-9][\w.-]{0,99}", self.name
        ):
            raise ValueError(
                f"Experiment name must be letters, digits, '-', '_' and '.', but got {self.name!r}"
            )
        if not callable(self.train):
            raise TypeError(f"Experiment train must be a function but got {self.train!r}")
        for name, kind in (
            ("space", SearchSpace),
            ("target", Target),
            ("scaling", Scaling),
            ("failure", FailurePolicy),
        ):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(
                    f"Experiment {name} must be a {kind.__name__} but got {getattr(self, name)!r}"
                )
        if isinstance(self.knobs, str) or not self.knobs or not {*self.knobs} <= {*KNOBS}:
            raise ValueError(
                f"Experiment knobs must be some of {', '.join(KNOBS)} but got {self.knobs!r}"
            )
        for i, given in enumerate(self.given()):
            label = "baseline" if self.baseline is not None and i == 0 else "configs"
            try:
                self.space.complete(given)
            except ValueError as error:
                raise ValueError(f"Experiment {label}: {error}") from None

    def given(self) -> list[Mapping[str, Any]]:
        """The configurations to run before the search, the baseline first."""
        return [*([self.baseline] if self.baseline is not None else []), *self.configs]
