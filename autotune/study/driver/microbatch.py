"""Microbatch sizes that fit into memory, after a trial has run out of it.

Trainers that support gradient accumulation list the keys that determine memory use, as their
`memory_keys`. When one of its ranks runs out of memory, every rank gets half of the samples in a
forward pass (`config["microbatch"]`) and twice as many passes a step: the global batch stays as it
was, and so does the optimisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from autotune.schedules import Schedule
from autotune.schedules.analysis import extremes
from autotune.trial import Config, Hardware, Trial
from autotune.trial.trainer import said

MICROBATCH = "microbatch"  # the reserved key: the most samples of a rank in one forward pass
_BATCH = "batch_size"  # samples of a step on all ranks together


def memory_keys(train: Callable[..., Any]) -> tuple[str, ...]:
    """The keys that determine the trainer's memory use; none if it cannot accumulate gradients."""
    named: Sequence[str] = said(train, "memory_keys", ())
    return tuple(named)


def halved(trial: Trial, train: Callable[..., Any] | None = None) -> int | None:
    """The next microbatch to try after running out of memory; None where none is left.

    Args:
        train: may say, as its `pass_size`, how many samples of a rank were in a forward pass, of
            the configuration and the number of ranks; else these are its part of the batch.

    >>> halved(Trial(0, {"batch_size": 64}, hardware=Hardware(num_workers=2)))
    16
    >>> halved(Trial(0, {"batch_size": 64}, microbatch=1)) is None
    True
    """
    local = _local_batch(trial)
    passed = None if local is None or train is None else _passed(trial, train)
    used = _least(trial.microbatch, trial.config.get(MICROBATCH), passed or local)
    if local is None or used is None or used <= 1:
        return None
    return math.ceil(used / 2)


def fitting(
    trial: Trial, trials: Iterable[Trial], keys: Sequence[str], hardware: Hardware
) -> int | None:
    """The microbatch that comparable trials were reduced to on such hardware.

    Comparable trials agree in the batch and in all of `keys`, of a schedule in its greatest value.
    None where nothing has run out of memory yet.
    """
    wanted = memory_settings(trial.config, keys)
    least = _least(
        *(
            t.microbatch
            for t in trials
            if t.microbatch is not None
            and t.hardware.now == hardware.now
            and memory_settings(t.config, keys) == wanted
        )
    )
    least = _least(least, trial.microbatch)  # never more than it had itself, on any hardware
    return None if least is None else _least(least, trial.config.get(MICROBATCH))


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _passed(trial: Trial, train: Callable[..., Any]) -> int | None:
    """The most samples of a rank in a forward pass as the trainer says it, or None."""
    size: Callable[[dict[str, Any], int], int] | None = said(train, "pass_size")
    if size is None:
        return None
    given = {_BATCH: _largest_batch(trial), MICROBATCH: trial.microbatch}
    config = {**trial.config, **{key: value for key, value in given.items() if value is not None}}
    try:
        return size(config, trial.hardware.num_workers)
    except ValueError:  # the trainer has said it
        return None


def _local_batch(trial: Trial) -> int | None:
    """The largest batch that a rank has over the trial's course, or None if it has none."""
    batch = _largest_batch(trial)
    return None if batch is None else math.ceil(batch / trial.hardware.num_workers)


def _largest_batch(trial: Trial) -> int | None:
    batch = _most(trial.config.get(_BATCH))
    if isinstance(batch, bool) or not isinstance(batch, int | float):
        return None
    turned = (change.batch_size for _, change in trial.changes if change.batch_size is not None)
    return max(round(batch), *turned, 1)


def memory_settings(config: Config, keys: Sequence[str]) -> tuple[Any, ...]:
    """The batch and the values of `keys`, of a schedule its greatest value."""
    return tuple(_most(config.get(key)) for key in (_BATCH, *keys))


def _most(value: Any) -> Any:
    return extremes(value)[1] if isinstance(value, Schedule) else value
