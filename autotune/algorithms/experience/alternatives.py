"""Parameters of which no point has two: their conditions exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.space.encoding import edges
from autotune.space.parameters import Choice, Float, Int, Parameter, wanted_values


def exclude(one: str, other: str, parameters: Mapping[str, Parameter]) -> bool:
    """Whether no point can have both parameters."""
    wanted, others = _wanted(one, parameters), _wanted(other, parameters)
    return any(not wanted[name] & others[name] for name in wanted.keys() & others.keys())


def _wanted(flat: str, parameters: Mapping[str, Parameter]) -> dict[str, set[Any]]:
    """The values that a parameter needs of others, directly or by what these need."""
    found: dict[str, set[Any]] = {}
    left = [flat]
    while left:
        parameter = parameters.get(left.pop())
        for parent, wanted in (parameter.when or {}).items() if parameter is not None else ():
            left += [parent] if parent not in found else []
            values = set(wanted_values(wanted))
            found[parent] = found[parent] & values if parent in found else values
    return found


def either(one: Parameter, other: Parameter) -> Parameter:
    """A parameter with the values of both, which are of one kind; else the first."""
    if isinstance(one, Choice) and isinstance(other, Choice):
        return Choice(tuple(dict.fromkeys((*one.options, *other.options))))
    if isinstance(one, Choice) or isinstance(other, Choice):
        return one
    if isinstance(one, Int) and isinstance(other, Int) and one.power_of_two == other.power_of_two:
        least, most = min(one.low, other.low), max(one.high, other.high)
        return replace(one, low=least, high=most, step=1, when=None)
    low, high = min(one.low, other.low), max(one.high, other.high)
    log = low > 0 and (edges(one)[2] or edges(other)[2])
    return Float(low, high, log=log)
