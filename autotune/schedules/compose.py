"""Schedules made of others, one after the other; and the union of all schedules."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from autotune.schedules.coupled import Effective, Following, Mirrored
from autotune.schedules.curve import ScheduleFunction, check_count, sampled_extremes
from autotune.schedules.families import (
    WSD,
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    LinearCosine,
    OneCycle,
    Piecewise,
    Polynomial,
    Step,
)
from autotune.schedules.formulas import inside, local
from autotune.schedules.text import span


@dataclass(frozen=True)
class Stages(ScheduleFunction):
    """Schedules one after another, each with its own progress from 0 to 1.

    `edges` lie strictly increasing in (0, 1), with one part more than edges. A part holds from its
    edge on, and neighbours need not meet. `stages` makes one from lengths.

    >>> print(Stages((0.5,), (Constant(1), Step(0.1, 0.01, edges=(0.5,)))))
    0-50%: constant 1, 50-100%: step 0.1 -> 0.01 (edges 50%)
    """

    edges: tuple[float, ...]
    parts: tuple[Schedule, ...]

    def _check(self) -> None:
        check_count(self, "parts", len(self.edges) + 1)

    def _at(self, x: float) -> float:
        stage = bisect_right(self.edges, x)
        return self.parts[stage]._at(local(self.edges, stage, x))

    def _spans(self) -> Iterable[tuple[float, float, Schedule]]:
        """The start and the end of each part, and the part."""
        knots = pairwise((0.0, *self.edges, 1.0))
        return ((low, high, part) for (low, high), part in zip(knots, self.parts, strict=True))

    def _corners(self) -> Iterable[float]:
        yield from self.edges
        for low, high, part in self._spans():
            own = (inside(low, high, place) for place in part._edge_list)
            yield from (x for x in own if x < high)

    def _extremes(self) -> tuple[float, float]:
        each = [part._bounds for part in self.parts]
        return min(least for least, _ in each), max(most for _, most in each)

    def _scaled(self, factor: float) -> Self:
        return replace(self, parts=tuple(part._scaled(factor) for part in self.parts))

    def _text(self) -> str:
        texts = [f"({text})" if "%: " in text else text for text in map(str, self.parts)]
        spans = [span(low, high) for low, high, _ in self._spans()]
        return ", ".join(f"{own}: {text}" for own, text in zip(spans, texts, strict=True))


@dataclass(frozen=True)
class Until(ScheduleFunction):
    """`base` up to the first edge, and from each edge on its value.

    The schedule of a knob that a controller sets during training, as DYNAMIX does with the batch
    size (arXiv 2510.08522). It has as many values as edges, at least one.

    >>> [Until(Linear(64, 128), (0.5, 0.75), (32, 512))(x) for x in (0.25, 0.5, 1.0)]
    [80.0, 32.0, 512.0]
    """

    base: Schedule
    edges: tuple[float, ...]
    values: tuple[float, ...]

    def _check(self) -> None:
        if not self.edges:
            raise ValueError("Until: edges must hold at least 1 number, got 0")
        check_count(self, "values", len(self.edges))

    def _at(self, x: float) -> float:
        place = bisect_right(self.edges, x)
        return self.values[place - 1] if place else self.base._at(x)

    def _corners(self) -> Iterable[float]:
        yield from (x for x in self.base._edge_list if x < self.edges[0])
        yield from self.edges

    def _extremes(self) -> tuple[float, float]:
        least, most = sampled_extremes(self.base, until=self.edges[0])
        return min(least, *self.values), max(most, *self.values)

    def _scaled(self, factor: float) -> Self:
        scaled = tuple(value * factor for value in self.values)
        return replace(self, base=self.base._scaled(factor), values=scaled)


@dataclass(frozen=True)
class Spliced(ScheduleFunction):
    """Schedules of one and the same progress: f(x) = part i (x) from its edge on.

    Unlike a stage, a part does not restart at its edge: its progress is that of the whole. This is
    the schedule of a training in which one schedule was replaced by another.

    >>> Spliced((0.5,), (Linear(0, 1), Linear(0, 10)))(0.5)
    5.0
    """

    edges: tuple[float, ...]
    parts: tuple[Schedule, ...]

    def _check(self) -> None:
        check_count(self, "parts", len(self.edges) + 1)

    def _at(self, x: float) -> float:
        return self.parts[bisect_right(self.edges, x)]._at(x)

    def _corners(self) -> Iterable[float]:
        yield from self.edges
        for low, high, part in self._spans():
            yield from (x for x in part._edge_list if low < x < high)

    def _spans(self) -> Iterable[tuple[float, float, Schedule]]:
        """The start and the end of each part, and the part."""
        knots = pairwise((0.0, *self.edges, 1.0))
        return ((low, high, part) for (low, high), part in zip(knots, self.parts, strict=True))

    def _extremes(self) -> tuple[float, float]:
        return sampled_extremes(self)

    def _scaled(self, factor: float) -> Self:
        return replace(self, parts=tuple(part._scaled(factor) for part in self.parts))

    def _text(self) -> str:
        return ", ".join(f"{span(low, high)} of ({part})" for low, high, part in self._spans())


Schedule = (
    Constant
    | Linear
    | Cosine
    | LinearCosine
    | Polynomial
    | Exponential
    | InverseSqrt
    | Step
    | OneCycle
    | WSD
    | Piecewise
    | Stages
    | Until
    | Spliced
    | Following
    | Mirrored
    | Effective
)
