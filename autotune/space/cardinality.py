"""The size of a search space, from its flat parameters and their conditions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.space.parameters import Fixed, Float, Int, Leaf, Parameter, active, options


@dataclass(frozen=True)
class Size:
    """The size of a search space.

    Args:
        shapes: the number of combinations of values on which other parameters are conditioned.
        least, most: the fewest and the most parameters of a point.
        points: the number of points, infinite if a real number is searched.
    """

    shapes: int
    least: int
    most: int
    points: float

    def with_all(self, other: Size) -> Size:
        """The size of the product of two independent spaces."""
        least, most = self.least + other.least, self.most + other.most
        return Size(self.shapes * other.shapes, least, most, self.points * other.points)

    def __str__(self) -> str:
        shapes = f"{self.shapes} shape{'s' if self.shapes > 1 else ''}"
        each = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        points = "infinitely many" if math.isinf(self.points) else f"{self.points:.0f}"
        return f"{shapes} with {each} parameters, {points} points"


def size(leaves: Sequence[Leaf]) -> Size:
    """The size of a space with these parameters, parents before children."""
    parents = {parent for _, parameter in leaves for parent in parameter.when or {}}
    total = Size(1, 0, 0, 1)
    for group in _depending(leaves):
        counted = list(_counted(group, parents, {}, 0, 1))
        searched = [count for count, _ in counted]
        points = sum(points for _, points in counted)
        total = total.with_all(Size(len(counted), min(searched), max(searched), points))
    return total


def _count(parameter: Parameter) -> float:
    if isinstance(parameter, Int) and not parameter.power_of_two:  # there may be very many
        return (parameter.high - parameter.low) // parameter.step + 1
    return math.inf if isinstance(parameter, Float) else len(options(parameter))


def _depending(leaves: Sequence[Leaf]) -> list[list[Leaf]]:
    """The parameters in independent groups, each in order."""
    groups: list[list[Leaf]] = []
    for leaf in leaves:
        parents = leaf[1].when or {}
        related = [g for g in groups if any(name in parents for name, _ in g)]
        groups = [g for g in groups if g not in related]
        groups.append([*(own for g in related for own in g), leaf])
    return groups


def _counted(
    leaves: Sequence[Leaf], parents: set[str], values: dict[str, Any], searched: int, points: float
) -> Iterator[tuple[int, float]]:
    """For each combination of conditions: the number of searched parameters and of points."""
    for i, (name, parameter) in enumerate(leaves):
        if not active(parameter.when, values):
            continue
        if isinstance(parameter, Fixed):
            values = {**values, name: parameter.value}
        elif name not in parents:
            searched, points = searched + 1, points * _count(parameter)
        elif isinstance(parameter, Float):
            values, searched, points = {**values, name: None}, searched + 1, math.inf
        else:
            for value in options(parameter):
                rest = leaves[i + 1 :], parents, {**values, name: value}
                yield from _counted(*rest, searched + 1, points)
            return
    yield searched, points
