"""Schedules as one line of text."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

LONGEST = 250  # characters: the limit of an MLflow parameter
VALUES = ("value", "start", "peak", "end")  # the fields in the unit of what is scheduled
_SUBJECTS = ("base", "of")  # the fields with the schedules that others are made from
_FRACTIONS = ("edges", "peak_at", "warmup", "decay")  # the fields in progress


def shortened(text: str) -> str:
    """The text, shortened to at most 250 characters."""
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def sentence(schedule: Any) -> str:
    """The name, the main fields, and all other fields in parentheses."""
    own = {field.name: getattr(schedule, field.name) for field in fields(schedule)}
    values = " -> ".join(words(name, own[name]) for name in own if name in (*VALUES, *_SUBJECTS))
    more = [name for name in own if name not in (*VALUES, *_SUBJECTS)]
    rest = ", ".join(f"{name} {words(name, own[name])}" for name in more)
    return f"{type(schedule).__name__.lower()} {values}" + (f" ({rest})" if rest else "")


def words(name: str, value: Any) -> str:
    """The value of the field `name`: progress in per cent, numbers with 4 digits."""
    if isinstance(value, tuple):
        return (" -> " if name == "values" else " ").join(words(name, item) for item in value)
    if isinstance(value, str):
        return value
    if is_dataclass(value):
        return f"({value})"
    return percent(value) if name in _FRACTIONS else f"{value:.4g}"


def percent(x: float) -> str:
    """Progress in per cent.

    >>> percent(0.125)
    '12.5%'
    """
    return f"{100 * x:.4g}%"


def span(low: float, high: float) -> str:
    """From one progress to another.

    >>> span(0.0, 0.1)
    '0-10%'
    """
    return f"{percent(low)[:-1]}-{percent(high)}"
