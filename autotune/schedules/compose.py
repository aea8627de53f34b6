"""Schedules made of others, and the union of all schedules."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from autotune.schedules.curve import LARGEST, ScheduleFunction, check_count, sampled_extremes
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
from autotune.schedules.formulas import between, inside, local
from autotune.schedules.text import span

_MOST_E = 345.0  # e to this is about 1e150


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


@dataclass(frozen=True)
class Following(ScheduleFunction):
    """f(x) = base(x) (other(x) / reference)^power: `base`, whenever `other` is the `reference`.

    For a learning rate that follows the batch size through all its changes. Power 1 is the linear
    scaling rule (Goyal et al., arXiv 1706.02677), 0.5 that of the square root (Krizhevsky, arXiv
    1404.5997; You et al., arXiv 1904.00962). `other` must be > 0 everywhere, `reference` > 0.

    >>> batch = Piecewise((0.5,), (128, 512), kind="constant")
    >>> [Following(Constant(0.1), batch, 0.5, 128)(x) for x in (0.0, 0.5)]
    [0.1, 0.2]
    """

    base: Schedule
    other: Schedule
    power: float
    reference: float

    def _check(self) -> None:
        least, most = self.other._bounds
        if least <= 0.0:
            rule = "other must be greater than 0 everywhere"
            raise ValueError(f"Following: {rule}, it goes down to {least:.6g}")
        largest = max(map(abs, self.base._bounds))
        for value in (least, most):
            ratio = math.log(value) - math.log(self.reference)
            exponent = self.power * ratio
            far = max(abs(ratio), abs(exponent)) > _MOST_E
            if far or largest * math.exp(exponent) > LARGEST:
                power = f"({value:.6g} / {self.reference:.6g})^{self.power:.6g}"
                raise ValueError(f"Following: (other / reference)^power is out of range, {power}")

    def _at(self, x: float) -> float:
        ratio = self.other._at(x) / self.reference
        return self.base._at(x) * math.pow(ratio, self.power)

    def _text(self) -> str:
        """With a constant `other` the values that the schedule has, else how they are made."""
        if isinstance(self.other, Constant):
            return _times(self.base, (self.other.value / self.reference) ** self.power)
        return f"({self.base}) x (({self.other}) / {self.reference:.4g})^{self.power:.4g}"

    def _corners(self) -> Iterable[float]:
        return (*self.base._edge_list, *self.other._edge_list)

    def _extremes(self) -> tuple[float, float]:
        return sampled_extremes(self)

    def _scaled(self, factor: float) -> Self:
        return replace(self, base=self.base._scaled(factor))


@dataclass(frozen=True)
class Mirrored(ScheduleFunction):
    """Opposite to another: at `high` where that is least, at `low` where it is greatest.

    f(x) = high - (high - low) (of(x) - least) / (most - least), with the extremes of `of`; `low`
    if that is constant. For a momentum that falls while the learning rate rises (Smith, arXiv
    1803.09820). `low` is at most `high`.

    >>> momentum = Mirrored(OneCycle(0.04, 1.0, 0.0), low=0.85, high=0.95)
    >>> momentum(0.3), momentum(1.0)
    (0.85, 0.95)
    """

    of: Schedule
    low: float
    high: float

    def _check(self) -> None:
        if self.low > self.high:
            raise ValueError(f"Mirrored: low must be at most high, got {self.low} and {self.high}")

    def _at(self, x: float) -> float:
        least, most = self.of._bounds
        if least == most:
            return self.low
        share = (self.of._at(x) - least) / (most - least)
        return between(self.high, self.low, max(0.0, share))

    def _corners(self) -> Iterable[float]:
        return self.of._edge_list

    def _extremes(self) -> tuple[float, float]:
        least, most = self.of._bounds
        return self.low, self.low if least == most else self.high

    def _scaled(self, factor: float) -> Self:
        return replace(self, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True)
class Effective(ScheduleFunction):
    """f(x) = base(x) (1 - momentum(x)): the learning rate whose effective rate is `base`.

    In the long run a step moves by lr / (1 - momentum), so with this one a changing momentum leaves
    the effective learning rate to `base`. `momentum` must lie in [0, 1) everywhere.

    >>> Effective(Constant(4.0), Linear(0.5, 0.75))(1.0)
    1.0
    """

    base: Schedule
    momentum: Schedule

    def _check(self) -> None:
        least, most = self.momentum._bounds
        if least < 0.0 or most >= 1.0:
            way = f"down to {least:.6g}" if least < 0.0 else f"up to {most:.6g}"
            raise ValueError(f"Effective: momentum must lie in [0, 1) everywhere, it goes {way}")

    def _at(self, x: float) -> float:
        return self.base._at(x) * (1.0 - self.momentum._at(x))

    def _text(self) -> str:
        """With a constant momentum the values that the schedule has, else how they are made."""
        if isinstance(self.momentum, Constant):
            return _times(self.base, 1.0 - self.momentum.value)
        return f"({self.base}) x (1 - ({self.momentum}))"

    def _corners(self) -> Iterable[float]:
        return (*self.base._edge_list, *self.momentum._edge_list)

    def _extremes(self) -> tuple[float, float]:
        return sampled_extremes(self)

    def _scaled(self, factor: float) -> Self:
        return replace(self, base=self.base._scaled(factor))


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


def _times(base: ScheduleFunction, factor: float) -> str:
    """The text of `base` with its values times the factor."""
    try:
        return base._scaled(factor)._text()
    except ValueError:  # the values leave the range of its family
        return f"({base}) x {factor:.4g}"
