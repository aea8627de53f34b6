"""Formulas that several schedules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

Shape = Literal["linear", "cosine", "sqrt"]

SHAPES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda x: x,
    "cosine": lambda x: (1.0 - math.cos(math.pi * x)) / 2.0,
    "sqrt": math.sqrt,
}


def between(start: float, end: float, weight: float) -> float:
    """Interpolate from `start` (weight 0) to `end` (1): exact at both ends, monotone, bounded."""
    if weight >= 1.0:
        return end
    value = start + (end - start) * weight  # rounding may overshoot `end`, never `start`
    return min(value, end) if start <= end else max(value, end)


def geometric(start: float, end: float, weight: float) -> float:
    """Interpolate geometrically from `start` (weight 0) to `end` (1), both > 0."""
    return end if weight >= 1.0 else clamp(start * (end / start) ** weight, start, end)


def clamp(value: float, a: float, b: float) -> float:
    """The number nearest to `value` between `a` and `b`, whichever of them is less."""
    return min(max(value, a), b) if a <= b else min(max(value, b), a)


def local(edges: tuple[float, ...], piece: int, x: float) -> float:
    """Progress within a piece."""
    low = edges[piece - 1] if piece else 0.0
    high = edges[piece] if piece < len(edges) else 1.0
    return (x - low) / (high - low)


def inside(low: float, high: float, place: float) -> float:
    """The first progress at which the part from `low` to `high` is at its own progress `place`.

    Exact to the last digit, so that the later piece holds there and the earlier one just before.
    """
    x = low + (high - low) * place
    while (x - low) / (high - low) >= place and x > low:
        x = math.nextafter(x, 0.0)
    while (x - low) / (high - low) < place:
        x = math.nextafter(x, 1.0)
    return x
