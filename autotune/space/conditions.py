"""Conditions of parameters: whether one can ever hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.errors import unknown
from autotune.space.parameters import Fixed, Parameter, When, say_when, wanted_values

Known = Mapping[str, Parameter | Fixed]


def check_condition(name: str, when: When | None, known: Known) -> None:
    """Raise a ValueError for a condition of the parameter `name` that can never hold.

    Args:
        known: the parameters declared before it, whose conditions can hold.
    """
    for parent, wanted in (when or {}).items():
        if parent not in known:
            raise ValueError(
                f"{name}: when: {unknown('parameter declared before it', parent, known)}"
            )
        parameter, values = known[parent], wanted_values(wanted)
        if isinstance(parameter, Fixed):
            if parameter.value not in values:
                never = " or ".join(map(repr, values))
                is_fixed = f"{parent} is fixed at {parameter.value!r}"
                raise ValueError(f"{name}: when: {is_fixed} and can never be {never}")
            continue
        for value in values:
            if parameter.check(value):
                raise ValueError(f"{name}: when: {parent} can never be {value!r}")
    _check_together(name, when or {}, known)


def _check_together(name: str, when: When, known: Known) -> None:
    """Raise a ValueError where it contradicts the conditions of the parameters that it names."""
    needed: dict[str, tuple[Any, ...]] = {}
    conditions = [when]
    while conditions:
        for parent, wanted in conditions.pop().items():
            values = wanted_values(wanted)
            if parent in needed:
                values = tuple(value for value in needed[parent] if value in values)
            else:
                conditions.append(known[parent].when or {})
            if not values:
                raise ValueError(
                    f"{name}: when: {say_when(when)} can never hold, as it needs two different "
                    f"values of {parent}"
                )
            needed[parent] = values
