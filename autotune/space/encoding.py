"""Encoding of parameters as numbers: positions in the unit interval, normal scores, features.

Every value of a whole number has a cell in the unit interval, whose width is its probability under
uniform draws; a real number has a position. The normal score of a position is the quantile of the
standard normal distribution there: uniform positions have standard normal scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from autotune.space.parameters import Choice, Float, Int, Parameter
from autotune.space.schedule_space import ScheduleSpace
from autotune.space.search_space import SearchSpace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ABSENT = -0.5  # the feature of a parameter that a point does not have
_EDGE = 0.005  # positions nearer to an end than this have the normal score of this position
_NORMAL = NormalDist()
_MISSING = object()
_RATES = ("lr", "learning_rate")
_MOMENTA = ("momentum", "beta1", "beta_1")
_LEAST_FRICTION = 1e-4  # the least 1 - momentum, as a momentum may be 1


def edges(parameter: Float | Int) -> tuple[float, float, bool]:
    """The interval of the values' cells, and whether it is on a logarithmic scale.

    >>> edges(Float(0.1, 10, log=True)), edges(Int(1, 9, step=3))
    ((0.1, 10, True), (-0.5, 8.5, False))
    """
    low, high = parameter.low, parameter.high
    if isinstance(parameter, Float):
        return low, high, parameter.log
    if parameter.power_of_two:
        return low / math.sqrt(2), high * math.sqrt(2), True
    if parameter.log:
        return low - 0.5, high + 0.5, True
    last = high - (high - low) % parameter.step
    return low - parameter.step / 2, last + parameter.step / 2, False


def unit_of(parameter: Float | Int, value: float) -> float:
    """The position of a value in [0, 1], the middle of its cell; values outside get an end.

    >>> unit_of(Float(0.01, 1.0, log=True), 0.1), unit_of(Int(1, 4), 1), unit_of(Int(1, 4), 99)
    (0.5, 0.125, 1.0)
    """
    low, high, log = edges(parameter)
    if high <= low:
        return 0.5
    if not log:
        return min(max((value - low) / (high - low), 0.0), 1.0)
    return min(max(math.log(max(value, low) / low) / math.log(high / low), 0.0), 1.0)


def real_at(parameter: Float | Int, unit: float) -> float:
    """The number at a position in [0, 1], not rounded to a value of the parameter."""
    low, high, log = edges(parameter)
    return low * (high / low) ** unit if log and high > low else low + unit * (high - low)


def value_at(parameter: Float | Int, unit: float) -> float:
    """The value whose cell contains a position in [0, 1]; always an allowed value.

    >>> value_at(Int(16, 256, power_of_two=True), 0.5), value_at(Int(1, 9, step=3), 0.99)
    (64, 7)
    """
    return nearest_value(parameter, real_at(parameter, unit))


def nearest_value(parameter: Float | Int, real: float) -> float:
    """The allowed value nearest to a number, of two whole ones the larger; an end from outside.

    Of powers of two it is the one with the nearest logarithm; the number must then be positive.

    >>> nearest_value(Int(1, 9, step=3), 5.5), nearest_value(Int(1, 9, step=3), 20)
    (7, 7)
    """
    low, high = parameter.low, parameter.high
    if isinstance(parameter, Float):
        return float(min(max(real, low), high))
    if parameter.power_of_two:
        return min(max(int(2 ** round(math.log2(real))), low), high)
    last = high - (high - low) % parameter.step
    steps = math.floor((real - low) / parameter.step + 0.5)
    return min(max(low + parameter.step * steps, low), last)


def score_of(unit: float) -> float:
    """The normal score of a position; its absolute value is at most 2.6.

    >>> score_of(0.5), round(score_of(0.0), 2)
    (0.0, -2.58)
    """
    return _NORMAL.inv_cdf(min(max(unit, _EDGE), 1.0 - _EDGE))


def unit_at(score: float) -> float:
    """The position of a normal score."""
    return _NORMAL.cdf(score)


def rank_score(rank: float, count: int) -> float:
    """The normal score of a rank in [0, 1] among `count`: negative for the best, rank 0."""
    return _NORMAL.inv_cdf((rank * (count - 1) + 0.6) / (count + 0.2))


# --- features of points for a model ---------------------------------------------------------------


@dataclass(frozen=True)
class EffectiveRate:
    """The effective learning rate, learning rate / (1 - momentum), of two searched parameters.

    `rate` and `momentum` are flat names; `low` and `high` are the range of its logarithm.
    """

    rate: str
    momentum: str
    low: float
    high: float

    def feature(self, point: Mapping[str, Any]) -> float:
        """The logarithm of the effective learning rate, from 0 to 1 over the space."""
        if self.rate not in point or self.momentum not in point or self.high <= self.low:
            return ABSENT
        value = _effective(point[self.rate], point[self.momentum])
        return (value - self.low) / (self.high - self.low)


def _effective(rate: float, momentum: float) -> float:
    return math.log(max(rate, 1e-12)) - math.log(max(1.0 - momentum, _LEAST_FRICTION))


def effective_rate(space: SearchSpace) -> EffectiveRate | None:
    """The effective learning rate of a space that searches learning rate and momentum.

    Their names are `lr` or `learning_rate`, and `momentum` or `beta1`; of schedules, their peaks.
    None if the space does not search both as numbers, or searches the effective one already.

    >>> space = SearchSpace({"lr": Float(0.1, 1.0), "momentum": Float(0.5, 0.9)})
    >>> rate = effective_rate(space)
    >>> rate.feature({"lr": 1.0, "momentum": 0.9}), rate.feature({"lr": 0.1, "momentum": 0.5})
    (1.0, 0.0)
    """
    parameters = space.parameters()
    rate, momentum = _named(parameters, _RATES), _named(parameters, _MOMENTA)
    if rate is None or momentum is None:
        return None
    entry = space.entries[rate.partition(".")[0]]
    r, m = parameters[rate], parameters[momentum]
    if isinstance(entry, ScheduleSpace) and entry.effective is not None:
        return None
    if isinstance(r, Choice) or isinstance(m, Choice) or not 0 <= m.low <= m.high <= 1 or r.low < 0:
        return None
    return EffectiveRate(rate, momentum, _effective(r.low, m.low), _effective(r.high, m.high))


def _named(parameters: Mapping[str, Parameter], names: Sequence[str]) -> str | None:
    return next((n for name in names for n in (name, f"{name}.peak") if n in parameters), None)


def features(parameter: Parameter, value: Any = _MISSING) -> list[float]:
    """A value as features: its position in [0, 1], or one number for each option of a choice.

    >>> features(Choice(("a", "b")), "b"), features(Float(0, 2), 1.0), features(Float(0, 2))
    ([0.0, 1.0], [0.5], [-0.5])
    """
    if isinstance(parameter, Choice):
        return [float(value is not _MISSING and value == option) for option in parameter.options]
    return [ABSENT] if value is _MISSING else [unit_of(parameter, value)]


def encoded(
    parameters: Mapping[str, Parameter], point: Mapping[str, Any], effective: EffectiveRate | None
) -> list[float]:
    """A point as one row of features, with its effective learning rate last if there is one."""
    row = [x for name, p in parameters.items() for x in features(p, point.get(name, _MISSING))]
    return [*row, effective.feature(point)] if effective is not None else row


class Encoder:
    """Makes points of a space rows of features for a model: see `encoded`."""

    def __init__(self, space: SearchSpace) -> None:
        self._parameters = space.parameters()
        self._effective = effective_rate(space)

    def rows(self, points: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """The points as an array (points, features)."""
        import numpy as np  # which a space alone does not need

        made = [encoded(self._parameters, point, self._effective) for point in points]
        return np.array(made, dtype=float)
