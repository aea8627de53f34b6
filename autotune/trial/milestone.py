"""What a trainer yields and what it gets back: milestones, and changes of its knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from autotune.errors import shown
from autotune.trial.checks import has_finite_float, real, whole

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Milestone:
    """A point at which a trainer can be evaluated, stopped, changed or saved on every rank.

    Args:
        step: samples seen so far by all ranks together (so that the batch size may change).
        evaluate: metrics now; called on every rank with the training clock paused. It may return a
            future of them, on all ranks: then training goes on while they are computed, of a copy
            of the weights, and the report is made, as of this milestone, at the next one.
        state: gives a checkpoint of this rank, called only when one is saved. The same rank gets
            its result as `config["state"]` when the trial resumes. Tensors, numbers, strings, lists
            and dicts only (it is read with `torch.load(weights_only=True)`). The tensors may be
            those that are trained: they are copied before training goes on.
        data_seconds: seconds since the last milestone spent waiting for input data.
        eval_seconds: seconds since the last milestone spent evaluating, for trainers whose
            framework evaluates before the milestone; not training.
        measure: metrics of the trained model that are too slow to measure at every milestone, such
            as its size: `train.measures` names them. Called on every rank, with all clocks paused,
            where an `autotune.Limit` asks for one and this milestone has the trial's result.

    A first milestone at the starting step (0, or the restored step) ends the set-up, which the
    clock leaves out. If a trainer trains before its first milestone, its set-up counts.

    Raises:
        ValueError: a step that is no whole number from 0 on of at most 63 bits, or a field of the
            wrong type.
    """

    step: int
    evaluate: Callable[[], Metrics | Future[Any]]
    state: Callable[[], dict[str, Any]] | None = None
    data_seconds: float = 0.0
    eval_seconds: float = 0.0
    measure: Callable[[], Metrics] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", whole("Milestone step", self.step, 0))
        for name in ("evaluate", "state", "measure"):
            given = getattr(self, name)
            if not callable(given) and (name == "evaluate" or given is not None):
                raise ValueError(f"Milestone {name} must be a function but got {shown(given)}")
        for name in ("data_seconds", "eval_seconds"):
            given = getattr(self, name)
            if not has_finite_float(given):
                raise ValueError(f"Milestone {name} must be finite but got {shown(given)}")


@dataclass(frozen=True)
class Change:
    """A change of knobs by a controller at a milestone; `yield` returns it on every rank.

    Raises:
        ValueError: a knob that is no number, or below 0.
    """

    lr_factor: float = 1.0
    batch_size: int | None = None
    momentum: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr_factor", real("Change lr_factor", self.lr_factor, 0))
        if self.batch_size is not None:
            batch_size = whole("Change batch_size", self.batch_size, 0)
            object.__setattr__(self, "batch_size", batch_size)
        if self.momentum is not None:
            object.__setattr__(self, "momentum", real("Change momentum", self.momentum, 0))


KNOBS = ("lr", "batch_size", "momentum")
"""The knobs that a `Change` can turn, by the names under which trainers report them."""
SHOWN_KNOBS = (*KNOBS, "image_size", "sequence_length")
"""What trainers report that schedules may drive, as MLflow and the report show it."""
