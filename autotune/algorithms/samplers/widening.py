"""Search that starts near the baseline: first trials keep most of its values, later ones fewer."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from autotune.space.parameters import Float, Parameter, drawn
from autotune.trial import Params

WIDENED = 10  # trials: as many as TPE draws at random before it has a model
_OTHERS = 20  # the most draws for a value that differs from the baseline's
_KEPT_FIRST, _KEPT_LAST = 0.8, 0.3  # share of the baseline's values: at first, at the end


def kept(
    number: int, known: Params, parameters: Mapping[str, Parameter], random: Random
) -> dict[str, Any]:
    """The values that ask `number` keeps of the baseline's point `known`; the rest is drawn."""
    share = _KEPT_FIRST + (_KEPT_LAST - _KEPT_FIRST) * number / WIDENED
    values = {name: value for name, value in known.items() if random.random() < share}
    if len(values) == len(known) and values:  # the baseline itself has run already
        del values[random.choice(sorted(values))]
    return values | _other(parameters, known, values, random)


def _other(
    parameters: Mapping[str, Parameter], known: Params, values: Params, random: Random
) -> dict[str, Any]:
    """One value unlike the baseline's, if the values still to be drawn could all equal it."""
    left = [name for name in known if name not in values]
    if any(_continuous(parameters[name]) for name in left):
        return {}
    for name in random.sample(left, len(left)) + random.sample(sorted(values), len(values)):
        for _ in range(_OTHERS):
            value = drawn(parameters[name], random)
            if value != known[name]:
                return {name: value}
    return {}


def _continuous(parameter: Parameter) -> bool:
    return isinstance(parameter, Float) and parameter.low < parameter.high
