"""The methods that all schedules share, and the validation of their fields."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, overload

from autotune.schedules.formulas import Shape
from autotune.schedules.text import VALUES, sentence, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


VERSION = 1
LARGEST = sys.float_info.max / 4  # so that differences of values stay finite
Kind = Literal["linear", "constant"]
_SAMPLES = 1024  # points at which a schedule is evaluated, spread over its pieces
_LEAST_SAMPLES = 16  # in every piece


@dataclass(frozen=True)
class ScheduleFunction(ABC):
    """A schedule: a function of progress with values, text, JSON, plot and a torch scheduler.

    The methods below `_at` have a default for schedules that are a formula of the fields `value`,
    `start`, `peak` and `end`, monotone between those that it has.
    """

    @abstractmethod
    def _at(self, x: float) -> float:
        """The value at `x` in [0, 1], unchecked: `x` is a float."""

    def _check(self) -> None:
        """Raise a `ValueError` if fields, each valid by itself, do not fit together."""

    def _corners(self) -> Iterable[float]:
        """The progresses at which it may jump or bend, in any order."""
        return ()

    def _extremes(self) -> tuple[float, float]:
        """The least and the greatest value, limits at edges included."""
        own = [getattr(self, name) for name in VALUES if hasattr(self, name)]
        return min(own), max(own)

    def _scaled(self, factor: float) -> Self:
        """The same with all values times `factor`."""
        old = {name: getattr(self, name) for name in VALUES if hasattr(self, name)}
        new: dict[str, Any] = {name: value * factor for name, value in old.items()}
        return replace(self, **new)

    def _text(self) -> str:
        """Readable text of any length."""
        return sentence(self)

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        """The least and the greatest value over [0, 1], computed once; see `extremes`."""
        return self._extremes()

    @cached_property
    def _edge_list(self) -> tuple[float, ...]:
        """All its edges, computed once; see `edges_of`."""
        return tuple(sorted({edge for edge in self._corners() if 0.0 < edge < 1.0}))

    def __post_init__(self) -> None:
        for field in fields(self):
            check: Callable[[str, Any], Any] = _CHECKS.get(field.name, number)
            where = f"{type(self).__name__}: {field.name}"
            object.__setattr__(self, field.name, check(where, getattr(self, field.name)))
        self._check()

    def __getstate__(self) -> dict[str, Any]:
        """The fields without cached values, so that equal schedules have equal pickles."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @overload
    def __call__(self, progress: float) -> float: ...
    @overload
    def __call__(self, progress: NDArray[Any]) -> NDArray[Any]: ...
    def __call__(self, progress: Any) -> Any:
        if type(progress) is not float and getattr(progress, "ndim", False):
            return self._over(progress)
        if not progress >= 0.0:  # also true of NaN
            raise ValueError(f"{self}: progress must be at least 0, got {progress}")
        return self._at(float(progress) if progress < 1.0 else 1.0)

    def _over(self, progress: NDArray[Any]) -> NDArray[Any]:
        import numpy as np

        points = np.asarray(progress, dtype=float)
        values = np.array([self(x) for x in points.ravel().tolist()], dtype=float)
        return values.reshape(points.shape)

    def __str__(self) -> str:
        """Readable text of at most 250 characters, for MLflow parameters; `to_json` is complete."""
        return shortened(self._text())

    def to_json(self) -> dict[str, Any]:
        """A JSON document of this schedule, read back by `from_json`.

        >>> from autotune.schedules import Cosine
        >>> Cosine(0.4, 0).to_json()
        {'schedule': 'Cosine', 'version': 1, 'start': 0.4, 'end': 0.0}
        """
        own = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {"schedule": type(self).__name__, "version": VERSION, **own}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the values over progress, on a new pyplot figure unless `ax` is given."""
        from autotune.schedules.plot import plot

        return plot(self, ax)

    def to_torch(self, optimizer: Optimizer, total_steps: int) -> LambdaLR:
        """A torch scheduler that sets every group's `lr` to exactly `self(step / total_steps)`.

        Args:
            optimizer: its groups' `initial_lr` becomes 1 (`LambdaLR` multiplies by it), so the `lr`
                that it was built with has no effect.
            total_steps: calls of `scheduler.step()` until progress 1; at least 1.

        Raises:
            ValueError: `total_steps` is not a positive integer.
        """
        from torch.optim.lr_scheduler import LambdaLR

        if isinstance(total_steps, bool) or not isinstance(total_steps, int) or total_steps < 1:
            raise ValueError(f"{self}: total_steps must be a positive integer, got {total_steps!r}")
        for group in optimizer.param_groups:
            group["initial_lr"] = 1.0
        return LambdaLR(optimizer, lambda step: self(step / total_steps))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_json() if isinstance(value, ScheduleFunction) else value


# Validation of a field, chosen by its name; `where` is the start of the error message.


def number(where: str, value: Any) -> float:
    """A finite number as a float."""
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an int beyond all floats
            converted = float(value)
            if -LARGEST <= converted <= LARGEST:
                return converted
    raise ValueError(f"{where} must be a finite number, got {value!r}")


def positive(where: str, value: Any) -> float:
    """A finite number > 0 as a float."""
    if number(where, value) <= 0.0:
        raise ValueError(f"{where} must be greater than 0, got {value!r}")
    return float(value)


def _sequence(where: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"{where} must be a tuple, got {value!r}")
    return tuple(value)


def _numbers(where: str, value: Any) -> tuple[float, ...]:
    numbered = enumerate(_sequence(where, value), 1)
    return tuple(number(f"{where}: number {i}", item) for i, item in numbered)


def _edges(where: str, value: Any) -> tuple[float, ...]:
    edges = _numbers(where, value)
    for i, edge in enumerate(edges, 1):
        if not 0.0 < edge < 1.0:
            raise ValueError(f"{where}: number {i} must lie in (0, 1), got {edge}")
        if i > 1 and edge <= edges[i - 2]:
            raise ValueError(f"{where}: number {i} must be more than {edges[i - 2]}, got {edge}")
    return edges


def _schedule(where: str, value: Any) -> ScheduleFunction:
    if not isinstance(value, ScheduleFunction):
        raise ValueError(f"{where} must be a schedule, got {value!r}")
    return value


def _parts(where: str, value: Any) -> tuple[ScheduleFunction, ...]:
    numbered = enumerate(_sequence(where, value), 1)
    return tuple(_schedule(f"{where}: part {i}", part) for i, part in numbered)


def _one_of(*names: str) -> Callable[[str, Any], str]:
    def check(where: str, value: Any) -> str:
        if value not in names:
            raise ValueError(f"{where} must be one of {', '.join(names)}, got {value!r}")
        return str(value)

    return check


NESTED = ("base", "other", "of", "momentum")  # the fields that hold a schedule
_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "edges": _edges,
    "values": _numbers,
    "parts": _parts,
    "shape": _one_of(*get_args(Shape)),
    "kind": _one_of(*get_args(Kind)),
    "reference": positive,
    **dict.fromkeys(NESTED, _schedule),
}


def check_count(owner: Any, name: str, need: int) -> None:
    """`owner.edges` and `owner.<name>` must fit together."""
    got = len(getattr(owner, name))
    if got != need:
        have = f"{len(owner.edges)} edges need {need} {name}"
        raise ValueError(f"{type(owner).__name__}: {have}, got {got}")


def check_ratio(owner: Any) -> None:
    """`owner.start` and `owner.end` must be > 0, and not too far from each other to divide."""
    name = type(owner).__name__
    ratio = positive(f"{name}: end", owner.end) / positive(f"{name}: start", owner.start)
    if not 1e-150 < ratio < 1e150:
        raise ValueError(f"{name}: end / start is out of range, {owner.end} / {owner.start}")


def sampled_extremes(schedule: ScheduleFunction, until: float = 1.0) -> tuple[float, float]:
    """Extremes by evaluation: on both sides of every edge, and at many points between edges."""
    knots = (0.0, *(x for x in schedule._edge_list if x < until), until)
    points = max(_LEAST_SAMPLES, _SAMPLES // (len(knots) - 1))
    values = [schedule._at(1.0)] if until == 1.0 else []
    for low, high in pairwise(knots):
        between_them = (low + (high - low) * i / points for i in range(points))
        values += map(schedule._at, between_them)
        values.append(schedule._at(math.nextafter(high, 0.0)))
    return min(values), max(values)
