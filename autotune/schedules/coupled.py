"""Schedules whose values depend on another one: of the batch size, the rate or the momentum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from autotune.schedules.curve import LARGEST, ScheduleFunction, sampled_extremes
from autotune.schedules.families import Constant
from autotune.schedules.formulas import between

_MOST_E = 345.0  # e to this is about 1e150


@dataclass(frozen=True)
class Following(ScheduleFunction):
    """f(x) = base(x) (other(x) / reference)^power: `base`, whenever `other` is the `reference`.

    For a learning rate that follows the batch size through all its changes. Power 1 is the linear
    scaling rule (Goyal et al., arXiv 1706.02677), 0.5 that of the square root (Krizhevsky, arXiv
    1404.5997; You et al., arXiv 1904.00962). `other` must be > 0 everywhere, `reference` > 0.

    >>> from autotune.schedules import Piecewise
    >>> batch = Piecewise((0.5,), (128, 512), kind="constant")
    >>> [Following(Constant(0.1), batch, 0.5, 128)(x) for x in (0.0, 0.5)]
    [0.1, 0.2]
    """

    base: ScheduleFunction
    other: ScheduleFunction
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

    >>> from autotune.schedules import OneCycle
    >>> momentum = Mirrored(OneCycle(0.04, 1.0, 0.0), low=0.85, high=0.95)
    >>> momentum(0.3), momentum(1.0)
    (0.85, 0.95)
    """

    of: ScheduleFunction
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

    >>> from autotune.schedules import Linear
    >>> Effective(Constant(4.0), Linear(0.5, 0.75))(1.0)
    1.0
    """

    base: ScheduleFunction
    momentum: ScheduleFunction

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


def _times(base: ScheduleFunction, factor: float) -> str:
    """The text of `base` with its values times the factor."""
    try:
        return base._scaled(factor)._text()
    except ValueError:  # the values leave the range of its family
        return f"({base}) x {factor:.4g}"
