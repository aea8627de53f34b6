"""A search that begins near the baseline: first trials take over most of it, later ones less."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from autotune.space.parameters import Float, Parameter, drawn
from autotune.trial import Params

WIDENED = 10  # trials, as many as TPE draws at random before it has a model
_OTHERS = 20  # draws for a value unlike the baseline's
_KEPT_FIRST, _KEPT_LAST = 0.8, 0.3  # shares of the baseline, before the first and at the end


def kept(
    number: int, known: Params, parameters: Mapping[str, Parameter], random: Random
) -> dict[str, Any]:
    """What trial `number` takes over from the baseline's point `known`; the rest is to be drawn."""
    share = _KEPT_FIRST + (_KEPT_LAST - _KEPT_FIRST) * number / WIDENED
    made = {name: value for name, value in known.items() if random.random() < share}
    if len(made) == len(known) and made:  # the baseline itself has run already
        del made[random.choice(sorted(made))]
    return made | _other(parameters, known, made, random)


def _other(
    parameters: Mapping[str, Parameter], known: Params, made: Params, random: Random
) -> dict[str, Any]:
    """One more value, unlike the baseline's, where all that is left to draw could be as there."""
    left = [name for name in known if name not in made]
    if any(_continuous(parameters[name]) for name in left):
        return {}
    for name in random.sample(left, len(left)) + random.sample(sorted(made), len(made)):
        for _ in range(_OTHERS):
            value = drawn(parameters[name], random)
            if value != known[name]:
                return {name: value}
    return {}


def _continuous(parameter: Parameter) -> bool:
    return isinstance(parameter, Float) and parameter.low < parameter.high
