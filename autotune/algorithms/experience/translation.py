"""Points of one space in another one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.space.encoding import edges, unit_of, value_at
from autotune.space.parameters import Choice, Float, Int, Parameter, drawn, is_real
from autotune.trial import Params


def translated(
    canonical: Mapping[str, Any], space: CanonicalSpace, baseline: Params, random: Random
) -> tuple[Params, float]:
    """A canonical point as a point of a space, and how far it lies outside, in ranges of a number.

    Numbers are clipped to their ranges. What the point does not say, or cannot have here, is as in
    the baseline, or drawn. It is infinitely far where a choice has no such option.
    """
    outside, missing = 0.0, object()

    def value(flat: str, parameter: Parameter) -> Any:
        nonlocal outside
        own = space.value(flat, canonical, missing)
        if own is not missing:
            if not parameter.check(own):
                if isinstance(parameter, Choice):
                    return next(option for option in parameter.options if option == own)
                return own
            if is_real(own) and not isinstance(parameter, Choice):
                outside = max(outside, _beyond(parameter, own))
                return value_at(parameter, unit_of(parameter, own))
            outside = math.inf
        return baseline[flat] if flat in baseline else drawn(parameter, random)

    point = space.space.suggest(value)
    return point, outside


def _beyond(parameter: Float | Int, value: float) -> float:
    """How far a number lies outside a parameter's range, in ranges."""
    low, high, log = edges(parameter)
    if log:
        low, high, value = (
            math.log(low),
            math.log(high),
            math.log(value) if value > 0 else -math.inf,
        )
    away = max(low - value, value - high, 0.0)
    return away / (high - low) if high > low else math.inf if away else 0.0
