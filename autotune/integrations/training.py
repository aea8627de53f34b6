"""Shared parts of the frameworks' callbacks: metrics, random state, changes by controllers."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autotune.backends.worker.reporting import evaluating
from autotune.errors import UserError, unknown
from autotune.trial import Change

Names = Mapping[str, str] | Sequence[str] | None
"""The metrics to report: None for all, a list of names, or `{our name: the framework's}`."""

_LR = ("lr", "initial_lr", "max_lr", "min_lr")


def named(names: Names) -> dict[str, str] | None:
    """`names` as `{our name: the framework's}`, or None for all.

    >>> named(["val_loss"]), named({"val_accuracy": "eval_accuracy"}), named(None)
    ({'val_loss': 'val_loss'}, {'val_accuracy': 'eval_accuracy'}, None)
    """
    if isinstance(names, str):
        raise UserError(f"metrics must be a list of names or a dict, got {names!r}")
    if names is None or isinstance(names, Mapping):
        return names if names is None else dict(names)
    return {name: name for name in names}


def chosen(found: Mapping[str, Any], names: Mapping[str, str] | None) -> dict[str, float]:
    """The metrics to report, selected from those `found`.

    Raises:
        UserError: one of `names` was not found.
    """
    if names is None:
        return {name: float(value) for name, value in found.items() if _is_number(value)}
    for theirs in names.values():
        if theirs not in found:
            raise UserError(unknown("metric", theirs, found))
    return {ours: float(found[theirs]) for ours, theirs in names.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) or (
        isinstance(value, torch.Tensor) and value.numel() == 1
    )


def check_every(every: int) -> int:
    """Raise UserError unless `every` is a whole number of at least 1."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise UserError(f"every must be a whole number of evaluations, at least 1, got {every!r}")
    return every


def world_size() -> int:
    """The number of ranks of the process group; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def check_ranks(framework: str, found: int, remedy: str) -> None:
    """Raise UserError if a framework would train on each rank alone."""
    if found != world_size():
        raise UserError(
            f"{framework} sees {found} of this trial's {world_size()} ranks, which would train "
            f"apart: {remedy}"
        )


def random_state() -> dict[str, Any]:
    """The state of the generators of Python, numpy and torch, as plain values and tensors."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [str(name), torch.from_numpy(np.array(keys, dtype=np.int64))],
        "numpy_gauss": [int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore a state from `random_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(numpy_state(state))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def numpy_state(state: Mapping[str, Any]) -> tuple[str, Any, int, int, float]:
    """The part of a state from `random_state` for `numpy.random.set_state`."""
    name, keys = state["numpy"]
    position, has_gauss, cached = state["numpy_gauss"]
    return name, keys.numpy().astype(np.uint32), position, has_gauss, cached


def turn(change: Change | None, optimizers: Iterable[Any], schedulers: Iterable[Any]) -> None:
    """Apply a controller's change: multiply the learning rate, replace the momentum.

    Optimizers and schedulers save the changed values in their own states.

    Raises:
        UserError: a change that the framework's loop does not support.
    """
    if change is None:
        return
    if change.batch_size is not None:
        raise UserError(
            f"a controller set batch_size to {change.batch_size}, but the framework owns the data "
            "loader: use a controller that turns lr or momentum only"
        )
    for scheduler in schedulers:
        _scale(scheduler, change.lr_factor)
    for group in (g for optimizer in optimizers for g in optimizer.param_groups):
        for name in _LR:
            if name in group:
                group[name] *= change.lr_factor
        if change.momentum is not None:
            _set_momentum(group, change.momentum)


def _scale(scheduler: Any, factor: float) -> None:
    for part in getattr(scheduler, "_schedulers", ()):
        _scale(part, factor)
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [lr * factor for lr in scheduler.base_lrs]


def _set_momentum(group: dict[str, Any], momentum: float) -> None:
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    elif "momentum" in group:
        group["momentum"] = momentum
    else:
        raise UserError("a controller set momentum, which this optimizer does not have")


class CallbackState:
    """The state of a callback: counts of evaluations, the paused clock, and the restored state.

    Args:
        config: the trial's configuration; that of a resumed trial has the callback's state.
        metrics: the names to report, as a list or as `{our name: the framework's}`; all if None.
        every: report at every n-th evaluation, n at least 1.
        write: writes the restored state into a folder, and returns the path from which the
            framework reads it.

    Raises:
        UserError: `metrics` or `every` is invalid.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        metrics: Names,
        every: int,
        write: Callable[[Path, Mapping[str, Any]], Path],
    ) -> None:
        self.names = named(metrics)
        self.restored: Mapping[str, Any] | None = config.get("state")
        self._every = check_every(every)
        self._write = write
        self._evaluations = 0
        self._pause = contextlib.ExitStack()
        self._paused = False
        self._place: tuple[tempfile.TemporaryDirectory[str], Path] | None = None

    @property
    def checkpoint(self) -> str | None:
        """The path of the checkpoint for the framework; None for a new trial."""
        if self.restored is None:
            return None
        if self._place is None:
            folder = tempfile.TemporaryDirectory(prefix="autotune-checkpoint-")
            self._place = folder, self._write(Path(folder.name), self.restored)
        return str(self._place[1])

    def clean(self) -> None:
        """Remove the checkpoint that was written for the framework."""
        if self._place is not None:
            self._place[0].cleanup()
            self._place = None

    def counted(self) -> bool:
        """Count an evaluation; return whether it is to be reported."""
        self._evaluations += 1
        return self._evaluations % self._every == 0

    def pause(self) -> None:
        """Pause the training clock, if it is not paused."""
        if not self._paused:
            self._pause.enter_context(evaluating())
            self._paused = True

    def resume(self) -> None:
        """Resume the training clock."""
        self._pause.close()
        self._paused = False
