"""Schedules with knots: their parameters, and the schedule of a point.

Every point of the box of parameters is a valid schedule, and different points are different
schedules: nothing is rejected, sorted or clipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal

from autotune import schedules
from autotune.space.parameters import Float, Int, Parameter, bounds, options

Direction = Literal["falling", "rising", "free"]
KNOTTED = ("piecewise", "staircase")
_SHARE = Float(0.02, 0.98)  # strictly inside, so that neighbouring knots never meet
_MOST_LEVELS = 10_000


@dataclass(frozen=True)
class Knots:
    """The inner knots of a schedule, or a staircase's edges; fields as those of `ScheduleSpace`."""

    peak: Float | Int | float
    final: Float | float
    count: Int | int
    direction: Direction

    def check(self) -> None:
        """Raise a ValueError for more knots than there are different edges or values."""
        low, high = bounds(self.count)
        if isinstance(self.count, bool | float) or not 1 <= low <= high <= 16:
            raise ValueError(f"ScheduleSpace knots must lie in 1 to 16 but got {self.count!r}")
        if not isinstance(self.peak, Int):
            return
        available = len(options(self.peak))
        need = 2 if self.direction == "free" else int(high) + 1
        if available < need:
            raise ValueError(
                f"ScheduleSpace staircase with {high} knots needs {need} different values, but "
                f"{self.peak!r} has {available}"
            )
        if self.direction != "free" and math.comb(available, int(high) + 1) > _MOST_LEVELS:
            raise ValueError(
                f"ScheduleSpace staircase: {available} values at {high} knots can be chosen in too "
                "many ways: give the peak a larger step"
            )

    def fields(self) -> Iterator[tuple[str, tuple[Parameter, tuple[int, ...]]]]:
        """Each knot's parameters, with the counts of knots for which they exist."""
        counts = options(self.count)
        available = len(options(self.peak))
        free = self.direction == "free"
        if free:
            first = Int(0, available - 1) if isinstance(self.peak, Int) else self.free_value()
            yield "value0", (first, counts)
        for knot in range(1, counts[-1] + 1):
            from_here = tuple(n for n in counts if n >= knot)
            yield f"edge{knot}", (_SHARE, from_here)
            if not isinstance(self.peak, Int):
                yield f"value{knot}", (self.free_value() if free else _SHARE, from_here)
            elif free:
                yield f"value{knot}", (Int(0, available - 2), from_here)
        if isinstance(self.peak, Int) and not free:
            for knots in counts:
                yield f"levels{knots}", (Int(0, math.comb(available, knots + 1) - 1), (knots,))

    def free_value(self) -> Float:
        """The parameter of a free knot's value: from the lowest final value to the highest peak."""
        low, high = bounds(self.peak)
        log = isinstance(self.peak, Float) and self.peak.log and bounds(self.final)[0] > 0
        return Float(low * bounds(self.final)[0], high, log=log)

    def build(self, values: Mapping[str, Any]) -> schedules.Schedule:
        """Build the schedule of drawn fields (by field name), without its warm-up."""
        count = values["knots"]
        edges = spread([values[f"edge{i}"] for i in range(1, count + 1)])
        smooth = values["family"] == "piecewise"
        if isinstance(self.peak, Int):
            heights = self._counted(values, count)
        elif self.direction == "free":
            heights = [values[f"value{i}"] for i in range(count + 1)]
            heights += [values["end"]] if smooth else []
        else:
            heights = self._monotone(values, count, smooth)
        return schedules.Piecewise(edges, tuple(heights), "linear" if smooth else "constant")

    def _monotone(self, values: Mapping[str, Any], count: int, smooth: bool) -> list[float]:
        peak = values["peak"]
        floor = peak * (values["final"] if smooth else bounds(self.final)[0])
        down = spread([values[f"value{i}"] for i in range(1, count + 1)])
        if floor > 0 and (not isinstance(self.peak, Float) or self.peak.log):
            inner = [peak * (floor / peak) ** share for share in down]
        else:
            inner = [peak + (floor - peak) * share for share in down]
        heights = [peak, *inner, *([floor] if smooth else [])]
        return heights[::-1] if self.direction == "rising" else heights

    def _counted(self, values: Mapping[str, Any], count: int) -> list[float]:
        available = options(self.peak)
        if self.direction == "free":
            indices = unrepeated([values[f"value{i}"] for i in range(count + 1)])
            return [available[i] for i in indices]
        chosen = _choices(len(available), count + 1)[values[f"levels{count}"]]
        heights = [available[i] for i in chosen]
        return heights[::-1] if self.direction == "falling" else heights


def spread(shares: Sequence[float]) -> tuple[float, ...]:
    """Strictly increasing positions in (0, 1), one for each share in (0, 1).

    Each share determines how much of the rest its position takes, such that uniform shares give
    positions that are distributed as sorted uniform numbers. Different shares give different
    positions: nothing is sorted, so no two points of a sampler's box are the same schedule.

    >>> [round(x, 3) for x in spread([0.5])], [round(x, 3) for x in spread([0.75, 0.5])]
    ([0.5], [0.5, 0.75])
    """
    positions: list[float] = []
    left = 0.0
    for i, share in enumerate(shares):
        left += (1.0 - left) * (1.0 - (1.0 - share) ** (1.0 / (len(shares) - i)))
        positions.append(left)
    return tuple(positions)


def unrepeated(numbers: Sequence[int]) -> list[int]:
    """Indices in which no two neighbours are equal: each number skips the index before it.

    >>> unrepeated([0, 0, 0, 1]), unrepeated([2, 1, 0, 1])
    ([0, 1, 0, 2], [2, 1, 0, 2])
    """
    indices: list[int] = []
    for number in numbers:
        indices.append(number + 1 if indices and number >= indices[-1] else number)
    return indices


@lru_cache(maxsize=64)
def _choices(available: int, count: int) -> list[tuple[int, ...]]:
    """All combinations of `count` of `available` values, similar ones next to each other."""
    return sorted(combinations(range(available), count), key=lambda chosen: (sum(chosen), chosen))
