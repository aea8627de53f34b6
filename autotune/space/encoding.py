"""Parameters as numbers: places in the unit interval, normal scores, and a forest's features.

Every value of a whole number has a cell of its own in the unit interval, as wide as it is likely
to be drawn; a real number has its place. The normal score of a place is where a standard normal
variable has as much of its mass to the left: an even place is a standard normal score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from autotune.space.parameters import Choice, Float, Int, Parameter
from autotune.space.schedule_space import ScheduleSpace
from autotune.space.search_space import SearchSpace

ABSENT = -0.5  # stands for a parameter that a point does not have
_EDGE = 0.005  # places nearer to an end than this have the normal score of this place
_NORMAL = NormalDist()
_MISSING = object()
_RATES = ("lr", "learning_rate")
_MOMENTA = ("momentum", "beta1", "beta_1")
_LEAST_FRICTION = 1e-4  # of 1 - momentum, where a momentum may be 1


def edges(parameter: Float | Int) -> tuple[float, float, bool]:
    """The interval that the values' cells fill, and whether it is searched by factors.

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
    """The place of a value, from 0 to 1: the middle of its cell; of what lies outside, an end.

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
    """The number at a place from 0 to 1, not yet rounded to a value of the parameter."""
    low, high, log = edges(parameter)
    return low * (high / low) ** unit if log and high > low else low + unit * (high - low)


def value_at(parameter: Float | Int, unit: float) -> float:
    """The value in whose cell a place from 0 to 1 lies; always one that the parameter allows.

    >>> value_at(Int(16, 256, power_of_two=True), 0.5), value_at(Int(1, 9, step=3), 0.99)
    (64, 7)
    """
    real, low, high = real_at(parameter, unit), parameter.low, parameter.high
    if isinstance(parameter, Float):
        return min(max(real, low), high)
    if parameter.power_of_two:
        return min(max(int(2 ** round(math.log2(real))), low), high)
    last = high - (high - low) % parameter.step
    steps = math.floor((real - low) / parameter.step + 0.5)
    return min(max(low + parameter.step * steps, low), last)


def score_of(unit: float) -> float:
    """The normal score of a place; no more than 2.6 from 0.

    >>> score_of(0.5), round(score_of(0.0), 2)
    (0.0, -2.58)
    """
    return _NORMAL.inv_cdf(min(max(unit, _EDGE), 1.0 - _EDGE))


def unit_at(score: float) -> float:
    """The place of a normal score."""
    return _NORMAL.cdf(score)


def rank_score(place: float, count: int) -> float:
    """The normal score of a standing: negative for the best (place 0) of `count`."""
    return _NORMAL.inv_cdf((place * (count - 1) + 0.6) / (count + 0.2))


# --- features for a model over points -------------------------------------------------------------


@dataclass(frozen=True)
class Effective:
    """A searched learning rate and the searched momentum that it acts through, by flat name.

    What a step does in the long run is learning rate / (1 - momentum): the effective one.
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


def effective_rate(space: SearchSpace) -> Effective | None:
    """The learning rate and momentum of a space that searches both as numbers on the usual names.

    These are `lr` or `learning_rate`, and `momentum` or `beta1`; of schedules, their peaks. None
    where it is the effective learning rate already that is searched.

    >>> space = SearchSpace({"lr": Float(0.1, 1.0), "momentum": Float(0.5, 0.9)})
    >>> found = effective_rate(space)
    >>> found.feature({"lr": 1.0, "momentum": 0.9}), found.feature({"lr": 0.1, "momentum": 0.5})
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
    return Effective(rate, momentum, _effective(r.low, m.low), _effective(r.high, m.high))


def _named(parameters: Mapping[str, Parameter], names: Sequence[str]) -> str | None:
    return next((n for name in names for n in (name, f"{name}.peak") if n in parameters), None)


def features(parameter: Parameter, value: Any = _MISSING) -> list[float]:
    """A value as numbers: its place in the unit interval, or one number an option of a choice.

    >>> features(Choice(("a", "b")), "b"), features(Float(0, 2), 1.0), features(Float(0, 2))
    ([0.0, 1.0], [0.5], [-0.5])
    """
    if isinstance(parameter, Choice):
        return [float(value is not _MISSING and value == option) for option in parameter.options]
    return [ABSENT] if value is _MISSING else [unit_of(parameter, value)]


def encoded(
    parameters: Mapping[str, Parameter], point: Mapping[str, Any], effective: Effective | None
) -> list[float]:
    """A point as one row of features, its effective learning rate last where there is one."""
    row = [x for name, p in parameters.items() for x in features(p, point.get(name, _MISSING))]
    return [*row, effective.feature(point)] if effective is not None else row
