"""Readers of configuration values: validation with one-line errors.

A reader takes a value and returns it, perhaps converted; it raises `NotAllowedError`, whose text
says what is allowed. Schedules are checked over their whole range, not at some points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune import schedules
from autotune.schedules import Constant, as_schedule, extremes, outside

Schedule = Callable[[float], float]
Reader = Callable[[Any], Any]
Key = tuple[Any, Reader]
"""A key's default, or `REQUIRED`, and its reader."""

REQUIRED = object()
SAMPLED = tuple(i / 20 for i in range(21))
"""The progresses at which a function that is no `Schedule` is checked."""


class NotAllowedError(Exception):
    """A value is not allowed; the text says what is."""


@dataclass(frozen=True)
class Number:
    """Reads a number at least `low` (more than it, if `open_low`) and less than `high`.

    With `closed_high` it may be `high` too.

    >>> str(Number(0.0, 1.0)), str(Number(0.0, 1.0, open_low=True, closed_high=True))
    ('a number at least 0 and less than 1', 'a number more than 0 and at most 1')
    """

    low: float
    high: float = math.inf
    open_low: bool = False
    closed_high: bool = False

    def __str__(self) -> str:
        most = "at most" if self.closed_high else "less than"
        top = "" if self.high == math.inf else f" and {most} {self.high:g}"
        return f"a number {'more than' if self.open_low else 'at least'} {self.low:g}{top}"

    def allows(self, value: float) -> bool:
        above = self.low < value if self.open_low else self.low <= value
        return above and (value <= self.high if self.closed_high else value < self.high)

    def __call__(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.allows(value):
            raise NotAllowedError(str(self))
        return value


def one_of(allowed: Iterable[str]) -> Reader:
    """Reads one of the names, in any case."""
    names = tuple(allowed)

    def read(value: Any) -> Any:
        name = value.lower() if isinstance(value, str) and value not in names else value
        if name not in names:
            raise NotAllowedError("one of " + ", ".join(names))
        return name

    return read


def whole(least: int) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise NotAllowedError(f"a whole number at least {least}")
        return value

    return read


def optional(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def scheduled(number: Number, plain: Reader | None = None) -> Reader:
    """Reads a number that `plain` (else `number`) allows, or a schedule with values in `number`."""

    def read(value: Any) -> Any:
        if not callable(value):
            return as_schedule((plain or number)(value))
        fault = fault_of(value, number.allows)
        if fault is not None:
            raise NotAllowedError(f"{number}{fault}")
        return value

    return read


def counted(least: int) -> Reader:
    """Reads a whole number at least `least`, or a schedule, whose values are rounded when used."""
    return scheduled(Number(least), whole(least))


def flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise NotAllowedError("True or False")
    return value


def unscheduled(value: Any) -> Any:
    """Reads a value that the optimizer validates, but no schedule."""
    if isinstance(value, schedules.Schedule):
        raise NotAllowedError("one value all along, not a schedule")
    return value


def text(value: Any) -> Any:
    if not isinstance(value, str):
        raise NotAllowedError("text")
    return value


def saved_state(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise NotAllowedError("what this trainer's milestone gave as its state")
    return value


def value_of(config: Mapping[str, Any], key: str, default: Any, reader: Reader) -> Any:
    """The value of a key of a configuration, or its default, as its reader gives it.

    Raises:
        ValueError: one line with the key, its value, and what is allowed.
    """
    if key not in config and default is REQUIRED:
        raise ValueError(f"{key} is missing from the configuration")
    value = config.get(key, default)
    try:
        return reader(value)
    except NotAllowedError as wrong:
        raise ValueError(f"{key} must be {wrong}, got {shown(value)}") from None


def fault_of(schedule: Schedule, allows: Callable[[float], bool]) -> str | None:
    """Where a schedule leaves the allowed values, as the end of a message; None if it never does.

    Schedules of `autotune.schedules` are checked by the extremes of each stage, other functions at
    21 points.

    >>> from autotune.schedules import Linear
    >>> fault_of(Linear(0.1, 0.0), lambda value: value >= 0) is None
    True
    """
    if isinstance(schedule, Constant):
        return None if allows(schedule.value) else ""
    if isinstance(schedule, schedules.Schedule):
        violation = outside(schedule, allows)
        return f", but {violation}" if violation else None
    for progress in SAMPLED:
        if not _gives(schedule, progress, allows):
            return f" at every progress, also at {progress:g}"
    return None


def _gives(function: Schedule, progress: float, allows: Callable[[float], bool]) -> bool:
    """Whether a function gives an allowed number there."""
    try:
        value = function(progress)
        return not isinstance(value, str) and allows(float(value))
    except TypeError:  # another signature, or no number
        return False


def require(key: str, schedule: Schedule, rule: str, allows: Callable[[float], bool]) -> None:
    """Require that all values of the schedule under `key` satisfy a rule.

    Raises:
        ValueError: one line with the key, the rule, and the stage that violates it.

    >>> require("batch_size", Constant(1), "at least the number of ranks, 2", lambda v: v >= 2)
    Traceback (most recent call last):
    ValueError: batch_size must be at least the number of ranks, 2, got 1
    """
    fault = fault_of(schedule, allows)
    if fault is not None:
        raise ValueError(f"{key} must be {rule}{fault}, got {shown(schedule)}")


def greatest(schedule: Schedule) -> float:
    """The largest value of a schedule (of another function, at 21 points)."""
    if isinstance(schedule, schedules.Schedule):
        return extremes(schedule)[1]
    return max(schedule(progress) for progress in SAMPLED)


def shown(value: Any) -> str:
    """A value as text for errors: schedules as their text, constant ones as their number."""
    if isinstance(value, Constant):
        whole_number = value.value == int(value.value)
        return str(int(value.value) if whole_number else value.value)
    return str(value) if isinstance(value, schedules.Schedule) else repr(value)
