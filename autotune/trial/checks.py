"""Numbers that a journal, a database and a tensor can hold, checked where they enter."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from autotune.errors import shown

BITS = 63
MOST = 2**BITS - 1  # the greatest whole number
LONGEST_SECONDS = 1e9  # the longest wait that is passed to the system: 31 years


def is_whole(value: object, least: int = -MOST, most: int = MOST) -> bool:
    """Whether it is an integer, not a bool, of at most 63 bits, from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_finite(value: object) -> bool:
    """Whether it is an int or a float, not a bool, that is finite as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond all floats
        return False


def has_finite_float(value: Any) -> bool:
    """Whether it is a finite number of any type: a scalar of numpy or torch, say."""
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def finite(name: str, value: object) -> None:
    """Raise ValueError, which names the argument, unless `value` is a finite number."""
    if not is_finite(value):
        raise ValueError(f"{name} must be a finite number but got {shown(value)}")


def whole(name: str, value: Any, least: int) -> int:
    """A whole number of at least `least` and at most 63 bits, as an int.

    Raises:
        ValueError: it is none; the message names the argument.
    """
    made = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value
    if not is_whole(made, least):
        raise ValueError(f"{name} must be a whole number >= {least} but got {shown(value)}")
    return int(made)


def real(name: str, value: Any, least: float) -> float:
    """A finite number of at least `least`: itself, or as a float where its type is another one.

    Raises:
        ValueError: it is none; the message names the argument.
    """
    is_number = isinstance(value, Real) and not isinstance(value, int | float)
    made = float(value) if is_number else value
    if not is_finite(made) or made < least:
        raise ValueError(f"{name} must be a finite number >= {least:g} but got {shown(value)}")
    number: float = made
    return number
