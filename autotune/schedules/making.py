"""Constructors of schedules: by name, from numbers, from lengths, from other schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, cast

from autotune.schedules.compose import Effective, Following, Schedule, Spliced, Stages
from autotune.schedules.curve import number, positive
from autotune.schedules.families import (
    WSD,
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    LinearCosine,
    Piecewise,
    Polynomial,
    Step,
)

FAMILIES: Mapping[str, Callable[[float, float], Schedule]] = MappingProxyType(
    {
        "constant": lambda start, end: Constant(start),
        "linear": Linear,
        "cosine": Cosine,
        "linear_cosine": LinearCosine,
        "polynomial": Polynomial,
        "exponential": Exponential,
        "inverse_sqrt": InverseSqrt,
        "step": Step,
        "wsd": lambda start, end: WSD(start, start, end, warmup=0.0),
    }
)
"""Shapes to search by name: each goes from `start` to `end`, only `constant` stays at `start`."""


def as_schedule(value: Schedule | float) -> Schedule:
    """A schedule as it is; a plain number as a constant one.

    >>> as_schedule(0.1)
    Constant(value=0.1)
    """
    return value if isinstance(value, Schedule) else Constant(value)


def warmed(schedule: Schedule | float, warmup: float) -> Schedule:
    """Rise linearly from 0 to the schedule's first value in the fraction `warmup` in [0, 1).

    The schedule is compressed into the rest. A warm-up of 0 gives the schedule itself.

    >>> print(warmed(Constant(0.1), 0.05))
    0-5%: linear 0 -> 0.1, 5-100%: constant 0.1
    """
    schedule = as_schedule(schedule)
    if warmup == 0:
        return schedule
    return Stages((warmup,), (Linear(0.0, schedule(0.0)), schedule))


def scaled(schedule: Schedule | float, factor: float) -> Schedule:
    """The schedule with all its values times `factor` (> 0 where the schedule needs values > 0).

    >>> from autotune.schedules import OneCycle
    >>> scaled(OneCycle(0.1, 1.0, 0.0), 4)
    OneCycle(start=0.4, peak=4.0, end=0.0, peak_at=0.3, shape='cosine')
    """
    return as_schedule(schedule)._scaled(factor)


def stages(*parts: tuple[float, Schedule | float]) -> Schedule:
    """Parts one after another, each with its length > 0 in one unit of your choice.

    A number is constant; numbers alone make a constant `Piecewise`, and a single part is returned.
    With whole lengths, edges are exactly `sum of those before / total`.

    >>> print(stages((6, Linear(1.88, 3.76)), (10, 1.88), (4, 0.25)))
    0-30%: linear 1.88 -> 3.76, 30-80%: constant 1.88, 80-100%: constant 0.25
    >>> stages((1, 128), (3, 256))
    Piecewise(edges=(0.25,), values=(128.0, 256.0), kind='constant')

    Raises:
        ValueError: no parts, or one that is invalid, with its number.
    """
    if not parts:
        raise ValueError("stages needs at least 1 part, got 0")
    checked = [_part(f"stages: part {i}", part) for i, part in enumerate(parts, 1)]
    lengths, values = [length for length, _ in checked], [value for _, value in checked]
    if len(values) == 1:
        return as_schedule(values[0])
    edges = _edges(lengths)
    if any(isinstance(value, Schedule) for value in values):
        return Stages(edges, tuple(map(as_schedule, values)))
    return Piecewise(edges, tuple(cast(list[float], values)), kind="constant")


def _part(where: str, part: Any) -> tuple[float, Schedule | float]:
    if not isinstance(part, (tuple, list)) or len(part) != 2:
        raise ValueError(f"{where} must be a length and a schedule or number, got {part!r}")
    length, value = part
    if not isinstance(value, Schedule):
        value = number(f"{where}: what is not a schedule", value)
    return positive(f"{where}: length", length), value


def _edges(lengths: list[float]) -> tuple[float, ...]:
    """The starts of all parts but the first; sums are exact, and rounded once."""
    total = math.fsum(lengths)
    knots = [math.fsum(lengths[:i]) / total for i in range(len(lengths))] + [1.0]
    for i, (low, high) in enumerate(pairwise(knots), 1):
        if high <= low:
            short = f"{lengths[i - 1]:.6g} is too short in a total of {total:.6g}"
            raise ValueError(f"stages: part {i}: length {short}")
    return tuple(knots[1:-1])


def substituted(schedule: Schedule, old: Schedule, new: Schedule) -> Schedule:
    """A schedule with `new` wherever it follows or compensates `old`.

    >>> batch_size = Linear(100, 200)
    >>> substituted(Following(Constant(0.1), batch_size, 1.0, 100), batch_size, Constant(400))(0.5)
    0.4
    """
    if isinstance(schedule, Following):
        base = substituted(schedule.base, old, new)
        return replace(schedule, base=base, other=new if schedule.other == old else schedule.other)
    if isinstance(schedule, Effective):
        base = substituted(schedule.base, old, new)
        momentum = new if schedule.momentum == old else schedule.momentum
        return replace(schedule, base=base, momentum=momentum)
    if isinstance(schedule, Spliced):
        return replace(schedule, parts=tuple(substituted(p, old, new) for p in schedule.parts))
    return schedule


def compressed(schedule: Schedule, times: float) -> Schedule:
    """The schedule compressed into 1 / `times` of the progress; then its final value holds.

    `times` is at least 1.

    >>> compressed(Linear(1.0, 0.0), 2)(0.25), compressed(Linear(1.0, 0.0), 2)(0.75)
    (0.5, 0.0)
    """
    if times == 1 or isinstance(schedule, Constant):
        return schedule
    if isinstance(schedule, Following):
        other = compressed(schedule.other, times)
        return replace(schedule, base=compressed(schedule.base, times), other=other)
    if isinstance(schedule, Effective):
        momentum = compressed(schedule.momentum, times)
        return replace(schedule, base=compressed(schedule.base, times), momentum=momentum)
    if isinstance(schedule, Spliced):
        parts = tuple(compressed(part, times) for part in schedule.parts)
        return Spliced(tuple(edge / times for edge in schedule.edges), parts)
    return Stages((1 / times,), (schedule, Constant(schedule._at(1.0))))
