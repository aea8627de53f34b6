"""Points as features, by the canonical parameters of a space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import Array, KnownTask
from autotune.algorithms.experience.names import OPTIMIZER, canonical_optimizer
from autotune.space.encoding import ABSENT, edges
from autotune.space.parameters import Choice, Parameter, is_real

_FAR = 10.0  # ranges from a parameter's; further values are as good as this


def names_of(task: KnownTask, space: CanonicalSpace) -> list[str]:
    """What a task's trials and the space's points both have."""
    there = {name for point in task.points for name in point}
    return [name for name in space.known if name in there]


def columns(name: str, points: Sequence[Mapping[str, Any]], space: CanonicalSpace) -> Array:
    """A parameter as features, (points, features): a number, or one for each option of a choice."""
    values: list[Any] = [point.get(name) for point in points]
    parameter = space.searched.get(name)
    if isinstance(parameter, Choice) and not all(map(is_real, parameter.options)):
        options: Sequence[Any] = parameter.options
        if name == OPTIMIZER:
            values, options = [*map(canonical_optimizer, values)], space.optimizers() or ()
        return np.array([[float(v == o) for o in options] for v in values])
    return np.array([scaled(parameter, v) if is_real(v) else ABSENT for v in values])[:, None]


def joined(features: Sequence[Array], rows: int) -> NDArray[np.float32]:
    """The features of points, (rows, features), at least one; as trees take them."""
    return np.concatenate([*features, np.zeros((rows, 1))], axis=1).astype(np.float32)


def scaled(parameter: Parameter | None, value: float) -> float:
    """A number from 0 to 1 within the parameter's range; a fixed or derived one's logarithm."""
    if parameter is None or isinstance(parameter, Choice):
        return math.log(value) if value > 0 else ABSENT
    low, high, log = edges(parameter)
    if log:
        if value <= 0:
            return ABSENT
        low, high, value = math.log(low), math.log(high), math.log(value)
    unit = (value - low) / (high - low) if high > low else 0.5
    return min(max(unit, -_FAR), _FAR)  # trees take 32-bit numbers
