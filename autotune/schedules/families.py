"""Schedules that are one formula of a few numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from autotune.schedules.curve import Kind, ScheduleFunction, check_count, check_ratio, positive
from autotune.schedules.formulas import SHAPES, Shape, between, clamp, geometric, local
from autotune.schedules.text import words


@dataclass(frozen=True)
class Constant(ScheduleFunction):
    """f(x) = value.

    >>> Constant(32)(0.5)
    32.0
    """

    value: float

    def _at(self, x: float) -> float:
        return self.value


@dataclass(frozen=True)
class Linear(ScheduleFunction):
    """f(x) = start + (end - start) x; monotone. To 0, it is common in speed runs.

    >>> Linear(1.0, 0.0)(0.25)
    0.75
    """

    start: float
    end: float

    def _at(self, x: float) -> float:
        return between(self.start, self.end, x)


@dataclass(frozen=True)
class Cosine(ScheduleFunction):
    """f(x) = end + (start - end) (1 + cos(pi x)) / 2, half a wave; monotone.

    Loshchilov and Hutter, SGDR (arXiv 1608.03983), without the restarts, which are `Stages`.

    >>> round(Cosine(0.4, 0.0)(0.5), 12)
    0.2
    """

    start: float
    end: float

    def _at(self, x: float) -> float:
        return between(self.start, self.end, SHAPES["cosine"](x))


@dataclass(frozen=True)
class LinearCosine(ScheduleFunction):
    """f(x) = end + (start - end) (1 - x) (1 + cos(pi x)) / 2, a line times half a wave; monotone.

    TensorFlow's `linear_cosine_decay` without its floor (Bello et al., arXiv 1709.07417); ModelArts
    decayed so in its DAWNBench entry of 2:42.

    >>> LinearCosine(1.0, 0.0)(0.5)
    0.25
    """

    start: float
    end: float

    def _at(self, x: float) -> float:
        return between(self.end, self.start, (1.0 - x) * (1.0 - SHAPES["cosine"](x)))


@dataclass(frozen=True)
class Polynomial(ScheduleFunction):
    """f(x) = end + (start - end) (1 - x)^power; monotone. `power` > 0; 1 is `Linear`.

    As in torch's `PolynomialLR`, and with power 2 as in LARS (You et al., arXiv 1708.03888).

    >>> Polynomial(1.0, 0.0)(0.5)
    0.25
    """

    start: float
    end: float
    power: float = 2.0

    def _check(self) -> None:
        positive("Polynomial: power", self.power)

    def _at(self, x: float) -> float:
        return between(self.end, self.start, (1.0 - x) ** self.power)


@dataclass(frozen=True)
class Exponential(ScheduleFunction):
    """f(x) = start (end / start)^x; monotone. Both ends > 0, as it never reaches 0.

    As in torch's `ExponentialLR` with gamma^steps = end / start.

    >>> Exponential(1.0, 0.01)(0.5)
    0.1
    """

    start: float
    end: float

    def _check(self) -> None:
        check_ratio(self)

    def _at(self, x: float) -> float:
        return geometric(self.start, self.end, x)


@dataclass(frozen=True)
class InverseSqrt(ScheduleFunction):
    """f(x) = start / sqrt(1 + c x), with c such that f(1) = end; monotone. Both ends > 0.

    After a warm-up this is the Transformer's schedule (Vaswani et al., arXiv 1706.03762): with a
    time scale of s steps and n steps of decay, end = start / sqrt(1 + n / s).

    >>> InverseSqrt(1.0, 0.25)(0.2)
    0.5
    """

    start: float
    end: float

    def _check(self) -> None:
        check_ratio(self)

    def _at(self, x: float) -> float:
        if x >= 1.0:
            return self.end
        c = (self.start / self.end) ** 2 - 1.0
        return clamp(self.start / math.sqrt(1.0 + c * x), self.start, self.end)


@dataclass(frozen=True)
class Step(ScheduleFunction):
    """From `start` to `end` by an equal factor at every edge; monotone. Both ends > 0.

    As in torch's `MultiStepLR` with gamma^len(edges) = end / start. The default edges are those of
    He et al. (arXiv 1512.03385) on CIFAR-10. For levels of your own, take a constant `Piecewise`.

    >>> [Step(1.0, 0.01)(x) for x in (0.4999, 0.5, 0.75)]
    [1.0, 0.1, 0.01]
    """

    start: float
    end: float
    edges: tuple[float, ...] = (0.5, 0.75)

    def _check(self) -> None:
        check_ratio(self)
        if not self.edges:
            raise ValueError("Step: edges must hold at least 1 number, got 0")

    def _corners(self) -> Iterable[float]:
        return self.edges

    def _at(self, x: float) -> float:
        return geometric(self.start, self.end, bisect_right(self.edges, x) / len(self.edges))


@dataclass(frozen=True)
class OneCycle(ScheduleFunction):
    """From `start` to `peak`, reached at progress `peak_at` in (0, 1), then to `end`.

    Smith and Topin (arXiv 1708.07120). torch's `OneCycleLR` has start = peak / 25, end =
    start / 10^4, peak_at = 0.3. Momentum cycles the other way, as `OneCycle(0.95, 0.85, 0.95)`.

    >>> OneCycle(0.04, 1.0, 0.0)(0.3)
    1.0
    """

    start: float
    peak: float
    end: float
    peak_at: float = 0.3
    shape: Shape = "cosine"

    def _check(self) -> None:
        if not 0.0 < self.peak_at < 1.0:
            raise ValueError(f"OneCycle: peak_at must lie in (0, 1), got {self.peak_at}")

    def _corners(self) -> Iterable[float]:
        return (self.peak_at,)

    def _at(self, x: float) -> float:
        shape, turn = SHAPES[self.shape], self.peak_at
        if x < turn:
            return between(self.start, self.peak, shape(x / turn))
        return between(self.peak, self.end, shape((x - turn) / (1.0 - turn)))


@dataclass(frozen=True)
class WSD(ScheduleFunction):
    """Warm up linearly from `start` to `peak`, hold (stable), decay to `end`: a trapezoid.

    `warmup` in [0, 1) and `decay` in (0, 1] are fractions of the run, together at most 1; without a
    warm-up it starts at the peak. `shape` is that of the decay; "sqrt" is 1 - sqrt (Haegele et al.,
    arXiv 2405.18392). WSD is from MiniCPM (arXiv 2404.06395). All horizons share the trunk.

    >>> [WSD(0.0, 1.0, 0.0, warmup=0.25, decay=0.5)(x) for x in (0.125, 0.4, 0.75)]
    [0.5, 1.0, 0.5]
    """

    start: float
    peak: float
    end: float
    warmup: float = 0.1
    decay: float = 0.2
    shape: Shape = "linear"

    def _check(self) -> None:
        if self.warmup < 0.0 or self.decay <= 0.0 or self.warmup + self.decay > 1.0:
            rule = "warmup must be at least 0, decay more than 0, their sum at most 1"
            raise ValueError(f"WSD: {rule}; got {self.warmup} and {self.decay}")

    def _corners(self) -> Iterable[float]:
        decays = 1.0 - self.decay
        without_hold = math.isclose(decays, self.warmup, abs_tol=1e-15)  # except for rounding
        return (self.warmup,) if without_hold else (self.warmup, decays)

    def _extremes(self) -> tuple[float, float]:
        own = (self.peak, self.end) if self.warmup == 0.0 else (self.start, self.peak, self.end)
        return min(own), max(own)

    def _at(self, x: float) -> float:
        if x < self.warmup:
            return between(self.start, self.peak, x / self.warmup)
        if x >= 1.0:
            return self.end
        decayed = max(0.0, (x - (1.0 - self.decay)) / self.decay)
        return between(self.peak, self.end, SHAPES[self.shape](decayed))


@dataclass(frozen=True)
class Piecewise(ScheduleFunction):
    """Given values, joined by lines or constant between edges.

    `kind="linear"`: `values` at 0, at each edge and at 1 (two more values than edges); continuous.
    `kind="constant"`: each value holds up to the next edge (one more value than edges).

    >>> Piecewise((0.5,), (0.0, 1.0, 0.5))(0.75)
    0.75
    >>> Piecewise((0.5,), (128, 256), kind="constant")(0.5)
    256.0
    """

    edges: tuple[float, ...]
    values: tuple[float, ...]
    kind: Kind = "linear"

    def _check(self) -> None:
        check_count(self, "values", len(self.edges) + (2 if self.kind == "linear" else 1))

    def _corners(self) -> Iterable[float]:
        return self.edges

    def _extremes(self) -> tuple[float, float]:
        return min(self.values), max(self.values)

    def _scaled(self, factor: float) -> Self:
        return replace(self, values=tuple(value * factor for value in self.values))

    def _text(self) -> str:
        values, edges = words("values", self.values), words("edges", self.edges)
        return f"piecewise {values} (kind {self.kind}, edges {edges})"

    def _at(self, x: float) -> float:
        piece = bisect_right(self.edges, x)
        if self.kind == "constant":
            return self.values[piece]
        return between(self.values[piece], self.values[piece + 1], local(self.edges, piece, x))
