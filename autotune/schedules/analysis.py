"""Analysis of schedules: extremes, edges, violations of a rule, equality as functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from autotune.schedules.compose import Schedule, Stages
from autotune.schedules.families import Piecewise
from autotune.schedules.text import percent, span

Allowed = Callable[[float], bool]

_POINTS = 1009  # prime, so that with the golden ratio no point is near a common edge
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_GRID = (0.0, *((i + _GOLDEN) / _POINTS for i in range(_POINTS)), 1.0)
_BESIDE = 1e-6  # how far from an edge two schedules are compared
_SAME_PLACE = 1e-9  # edges nearer than this are equal: they are rounded sums
_DIGITS = 9
_SKETCH_GRID = _GRID[::144]
_SKETCH_TOLERANCE = 1e-6  # of the largest value: much more than that of `same_meaning`


def extremes(schedule: Schedule) -> tuple[float, float]:
    """The least and the greatest value over [0, 1], including limits at edges.

    Exact, except for `Following` and `Effective`: these products are evaluated on both sides of
    every edge and at about 1000 points between. The error is what they move within half such a
    step; if a factor is constant, only rounding.

    >>> from autotune.schedules import Cosine, Linear, Stages
    >>> extremes(Stages((0.5,), (Linear(0.0, 3.0), Cosine(1.0, -1.0))))
    (-1.0, 3.0)
    """
    return schedule._bounds


def edges_of(schedule: Schedule) -> tuple[float, ...]:
    """All progresses in (0, 1) where it may jump or bend, including nested schedules; sorted.

    At an edge the later piece holds, and at the float just before it the earlier one.

    >>> from autotune.schedules import WSD, Stages, Step
    >>> edges_of(Stages((0.5,), (WSD(0, 1, 0, warmup=0.25, decay=0.5), Step(1.0, 0.1, (0.5,)))))
    (0.125, 0.25, 0.5, 0.75)
    """
    return schedule._edge_list


def outside(schedule: Schedule, allowed: Allowed) -> str:
    """Where and how far a schedule leaves the allowed values; empty if it never does.

    Args:
        schedule: the schedule whose `extremes` are tested.
        allowed: whether a value is allowed; the allowed values must be an interval.

    >>> from autotune.schedules import Linear, Stages
    >>> outside(Stages((0.1,), (Linear(0, 1), Linear(1, -0.1))), lambda value: value >= 0)
    'stage 2 of 2 (10-100%) goes down to -0.1'
    >>> outside(Linear(0.8, 1.2), lambda value: value <= 1)
    'it goes up to 1.2'
    """
    *places, what = next(_violations(schedule, allowed, 0.0, 1.0), ("",))
    return f"{': '.join(places) or 'it'} {what}" if what else ""


def _violations(
    schedule: Schedule, allowed: Allowed, low: float, high: float
) -> Iterator[tuple[str, ...]]:
    """Each violation as its path of nested parts and a description; it runs from low to high."""
    if isinstance(schedule, Stages):
        for number, (start, end, part) in enumerate(schedule._spans(), 1):
            start, end = low + (high - low) * start, low + (high - low) * end
            place = f"stage {number} of {len(schedule.parts)} ({span(start, end)})"
            for violation in _violations(part, allowed, start, end):
                yield place, *violation
        return
    if isinstance(schedule, Piecewise):
        steps = schedule.kind == "constant"
        knots = (0.0, *schedule.edges, 1.0)
        for number, (knot, value) in enumerate(zip(knots, schedule.values, strict=False), 1):
            if not allowed(value):
                at = f"{'from' if steps else 'at'} {percent(low + (high - low) * knot)}"
                place = f"value {number} of {len(schedule.values)} ({at})"
                yield place, f"is {_shown(value, allowed)}"
        return
    least, most = schedule._bounds
    too_low, too_high = not allowed(least), not allowed(most)
    if too_low and too_high:
        ends = sorted({least, most})
        way = "is" if len(ends) == 1 else "goes from"
        yield (f"{way} {' to '.join(_shown(value, allowed) for value in ends)}",)
    elif too_low or too_high:
        yield (
            f"goes down to {_shown(least, allowed)}"
            if too_low
            else f"goes up to {_shown(most, allowed)}",
        )


def _shown(value: float, allowed: Allowed) -> str:
    """The value as short text, but exact where the rounded value would be allowed."""
    short = f"{value:.6g}"
    return repr(value) if allowed(float(short)) else short


def meaning(schedule: Schedule) -> tuple[float, ...]:
    """A hashable key of a schedule as a function: its values at about 1000 fixed progresses.

    It is equal for schedules that are the same function, up to the 9th digit. Differences in pieces
    shorter than a thousandth may be missed: see `same_meaning`.

    >>> from autotune.schedules import Linear, Polynomial
    >>> meaning(Polynomial(0.4, 0.0, power=1)) == meaning(Linear(0.4, 0.0))
    True
    """
    return tuple(_rounded(schedule._at(x)) for x in _GRID)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS - 1}e}") + 0.0  # + 0.0 makes -0.0 a 0.0


def same_meaning(a: Schedule, b: Schedule) -> bool:
    """Whether two schedules are the same function, in whatever form.

    They are compared at the progresses of `meaning`, a millionth of progress beside every edge of
    both, and between neighbouring edges. The tolerance is the 9th digit of values (or 1e-12 of the
    largest, for those near 0), and 1e-9 of progress.

    >>> from autotune.schedules import Constant, Cosine, Linear
    >>> same_meaning(Linear(1.0, 1.0), Constant(1.0)), same_meaning(Linear(1, 0), Cosine(1, 0))
    (True, False)
    """
    if a == b:
        return True
    nearly_zero = 1e-12 * max(map(abs, (*a._bounds, *b._bounds)))
    return all(
        math.isclose(a._at(x), b._at(x), rel_tol=10.0**-_DIGITS, abs_tol=nearly_zero)
        for x in (*_near_edges(a, b), *_GRID)
    )


class Sketch(NamedTuple):
    """A schedule with a few of its values, for a fast test of inequality."""

    schedule: Schedule
    values: tuple[float, ...]
    slack: float


def sketch(schedule: Schedule) -> Sketch:
    """The sketch of a schedule, for comparing many schedules with each other."""
    slack = _SKETCH_TOLERANCE * max(map(abs, schedule._bounds))
    return Sketch(schedule, tuple(schedule._at(x) for x in _SKETCH_GRID), slack)


def same_by_sketch(a: Sketch, b: Sketch) -> bool:
    """`same_meaning`, with a fast test of the sketches first."""
    near = (abs(x - y) <= a.slack + b.slack for x, y in zip(a.values, b.values, strict=True))
    return all(near) and same_meaning(a.schedule, b.schedule)


def _near_edges(a: Schedule, b: Schedule) -> Iterator[float]:
    knots = sorted({0.0, *a._edge_list, *b._edge_list, 1.0})
    for low, high in pairwise(knots):
        if high - low > _SAME_PLACE:
            yield (low + high) / 2.0
        if high - low > 2.0 * _BESIDE:
            yield low + _BESIDE
            yield high - _BESIDE
