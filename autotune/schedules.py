"""Schedules: frozen functions of progress.

Progress runs from 0 (the start of training) to 1 (its configured horizon). Past 1 a schedule holds
its final value, so a trial that outlives its horizon trains on; below 0, or NaN, is a `ValueError`.
Arrays give arrays of the same shape. Values are any finite numbers in the unit of what is scheduled
(a learning rate, a momentum, a batch size) and always come back as floats. Where a schedule says
`start` and `end`, it returns exactly these at 0 and at 1.

There is one rule for edges: **at an edge the later part holds.** A warm-up is a stage and not a
kind of schedule, and any schedule may be a stage:

>>> lr = Stages(edges=(0.1,), parts=(Linear(0.0, 0.4), Cosine(0.4, 0.0)))
>>> print(lr)
0-10%: linear 0 -> 0.4, 10-100%: cosine 0.4 -> 0
>>> lr(0.05), lr(0.1), lr(1.0), lr(7.0)
(0.2, 0.4, 0.0, 0.0)
>>> lr == warmed(Cosine(0.4, 0.0), 0.1) == from_json(lr.to_json())
True

A new schedule is one class here, its name in `Schedule`, and one row in the table of its tests.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from itertools import pairwise
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, overload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR

VERSION = 1
Shape = Literal["linear", "cosine", "sqrt"]
Kind = Literal["linear", "constant"]

_LARGEST = sys.float_info.max / 4  # so that differences of values stay finite
_LONGEST_TEXT = 250
_VALUES = ("value", "start", "peak", "end")  # the fields in the unit of what is scheduled
_FRACTIONS = ("edges", "peak_at", "warmup", "decay")  # the fields in progress
_SHAPES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda x: x,
    "cosine": lambda x: (1.0 - math.cos(math.pi * x)) / 2.0,
    "sqrt": math.sqrt,
}


@dataclass(frozen=True)
class _Curve(ABC):
    """What every schedule can do, given its value at a valid progress."""

    @abstractmethod
    def _at(self, x: float) -> float:
        """The value at `x` in [0, 1]."""

    def _check(self) -> None:
        """Raise a `ValueError` if fields, each valid by itself, do not fit together."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check: Callable[[str, Any], Any] = _CHECKS.get(field.name, _number)
            where = f"{type(self).__name__}: {field.name}"
            object.__setattr__(self, field.name, check(where, getattr(self, field.name)))
        self._check()

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
        """Readable, and at most 250 characters (for an MLflow parameter); `to_json` tells all."""
        text = _text(self)
        return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."

    def to_json(self) -> dict[str, Any]:
        """A JSON document of this schedule, read back by `from_json`.

        >>> Cosine(0.4, 0).to_json()
        {'schedule': 'Cosine', 'version': 1, 'start': 0.4, 'end': 0.0}
        """
        own = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {"schedule": type(self).__name__, "version": VERSION, **own}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the values over progress, on a new pyplot figure unless `ax` is given."""
        from autotune.schedule_plot import plot

        return plot(cast(Schedule, self), ax)

    def to_torch(self, optimizer: Optimizer, total_steps: int) -> LambdaLR:
        """A torch scheduler that sets every group's `lr` to exactly `self(step / total_steps)`.

        Args:
            optimizer: its groups' `initial_lr` becomes 1 (`LambdaLR` multiplies by it), so what
                `lr` it was built with no longer matters.
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


@dataclass(frozen=True)
class Constant(_Curve):
    """f(x) = value.

    >>> Constant(32)(0.5)
    32.0
    """

    value: float

    def _at(self, x: float) -> float:
        return self.value


@dataclass(frozen=True)
class Linear(_Curve):
    """f(x) = start + (end - start) x; monotone. To 0, it is the habit of speed runs.

    >>> Linear(1.0, 0.0)(0.25)
    0.75
    """

    start: float
    end: float

    def _at(self, x: float) -> float:
        return _between(self.start, self.end, x)


@dataclass(frozen=True)
class Cosine(_Curve):
    """f(x) = end + (start - end) (1 + cos(pi x)) / 2, half a wave; monotone.

    Loshchilov and Hutter, SGDR (arXiv 1608.03983), without the restarts, which are `Stages`.

    >>> round(Cosine(0.4, 0.0)(0.5), 12)
    0.2
    """

    start: float
    end: float

    def _at(self, x: float) -> float:
        return _between(self.start, self.end, _SHAPES["cosine"](x))


@dataclass(frozen=True)
class Polynomial(_Curve):
    """f(x) = end + (start - end) (1 - x)^power; monotone. `power` > 0; 1 is `Linear`.

    As in torch's `PolynomialLR`, and with power 2 as in LARS (You et al., arXiv 1708.03888).

    >>> Polynomial(1.0, 0.0)(0.5)
    0.25
    """

    start: float
    end: float
    power: float = 2.0

    def _at(self, x: float) -> float:
        return _between(self.end, self.start, (1.0 - x) ** self.power)


@dataclass(frozen=True)
class Exponential(_Curve):
    """f(x) = start (end / start)^x; monotone. Both ends > 0: it never reaches 0, so name a floor.

    As in torch's `ExponentialLR` with gamma^steps = end / start.

    >>> Exponential(1.0, 0.01)(0.5)
    0.1
    """

    start: float
    end: float

    def _check(self) -> None:
        _check_ratio(self)

    def _at(self, x: float) -> float:
        return _geometric(self.start, self.end, x)


@dataclass(frozen=True)
class InverseSqrt(_Curve):
    """f(x) = start / sqrt(1 + c x), with c such that f(1) = end; monotone. Both ends > 0.

    After a warm-up this is the Transformer's schedule (Vaswani et al., arXiv 1706.03762): with a
    time scale of s steps and n steps of decay, end = start / sqrt(1 + n / s).

    >>> InverseSqrt(1.0, 0.25)(0.2)
    0.5
    """

    start: float
    end: float

    def _check(self) -> None:
        _check_ratio(self)

    def _at(self, x: float) -> float:
        if x >= 1.0:
            return self.end
        c = (self.start / self.end) ** 2 - 1.0
        return _clamp(self.start / math.sqrt(1.0 + c * x), self.start, self.end)


@dataclass(frozen=True)
class Step(_Curve):
    """From `start` to `end` by an equal factor at every edge; monotone. Both ends > 0.

    As in torch's `MultiStepLR` with gamma^len(edges) = end / start. The default edges are those of
    He et al. (arXiv 1512.03385) on CIFAR-10. For levels of your own, take a constant `Piecewise`.

    >>> [Step(1.0, 0.01)(x) for x in (0.4999, 0.5, 0.75)]
    [1.0, 0.1, 0.01]
    """

    start: float
    end: float
    edges: tuple[float, ...] = (0.5, 0.75)

    def _check(self) -> None:
        _check_ratio(self)
        if not self.edges:
            raise ValueError("Step: edges must hold at least 1 number, got 0")

    def _at(self, x: float) -> float:
        return _geometric(self.start, self.end, bisect_right(self.edges, x) / len(self.edges))


@dataclass(frozen=True)
class OneCycle(_Curve):
    """From `start` to `peak`, reached at progress `peak_at` in (0, 1), then to `end`.

    Smith and Topin (arXiv 1708.07120). torch's `OneCycleLR` has start = peak / 25, end =
    start / 10^4, peak_at = 0.3. Momentum cycles the other way, as `OneCycle(0.95, 0.85, 0.95)`.

    >>> OneCycle(0.04, 1.0, 0.0)(0.3)
    1.0
    """

    start: float
    peak: float
    end: float
    peak_at: float = 0.3
    shape: Shape = "cosine"

    def _check(self) -> None:
        if not 0.0 < self.peak_at < 1.0:
            raise ValueError(f"OneCycle: peak_at must lie in (0, 1), got {self.peak_at}")

    def _at(self, x: float) -> float:
        shape, turn = _SHAPES[self.shape], self.peak_at
        if x < turn:
            return _between(self.start, self.peak, shape(x / turn))
        return _between(self.peak, self.end, shape((x - turn) / (1.0 - turn)))


@dataclass(frozen=True)
class WSD(_Curve):
    """Warm up linearly from `start` to `peak`, hold (stable), decay to `end`: a trapezoid.

    `warmup` in [0, 1) and `decay` in (0, 1] are fractions of the run, together at most 1; without a
    warm-up it starts at the peak. `shape` is that of the decay; "sqrt" is 1 - sqrt (Haegele et al.,
    arXiv 2405.18392). WSD is from MiniCPM (arXiv 2404.06395). All horizons share the trunk.

    >>> [WSD(0.0, 1.0, 0.0, warmup=0.25, decay=0.5)(x) for x in (0.125, 0.4, 0.75)]
    [0.5, 1.0, 0.5]
    """

    start: float
    peak: float
    end: float
    warmup: float = 0.1
    decay: float = 0.2
    shape: Shape = "linear"

    def _check(self) -> None:
        if self.warmup < 0.0 or self.decay <= 0.0 or self.warmup + self.decay > 1.0:
            rule = "warmup must be at least 0, decay more than 0, their sum at most 1"
            raise ValueError(f"WSD: {rule}; got {self.warmup} and {self.decay}")

    def _at(self, x: float) -> float:
        if x < self.warmup:
            return _between(self.start, self.peak, x / self.warmup)
        if x >= 1.0:
            return self.end
        decayed = max(0.0, (x - (1.0 - self.decay)) / self.decay)
        return _between(self.peak, self.end, _SHAPES[self.shape](decayed))


@dataclass(frozen=True)
class Piecewise(_Curve):
    """Given values, joined by lines or held.

    `kind="linear"`: `values` at 0, at each edge and at 1 (two more values than edges); continuous.
    `kind="constant"`: each value is held up to the next edge (one more value than edges).

    >>> Piecewise((0.5,), (0.0, 1.0, 0.5))(0.75)
    0.75
    >>> Piecewise((0.5,), (128, 256), kind="constant")(0.5)
    256.0
    """

    edges: tuple[float, ...]
    values: tuple[float, ...]
    kind: Kind = "linear"

    def _check(self) -> None:
        _check_count(self, "values", len(self.edges) + (2 if self.kind == "linear" else 1))

    def _at(self, x: float) -> float:
        piece = bisect_right(self.edges, x)
        if self.kind == "constant":
            return self.values[piece]
        return _between(self.values[piece], self.values[piece + 1], _local(self.edges, piece, x))


@dataclass(frozen=True)
class Stages(_Curve):
    """Schedules one after another, each seeing its own progress from 0 to 1.

    `edges` lie strictly increasing in (0, 1), with one part more than edges. A part holds from its
    edge on, and neighbours need not meet.

    >>> print(Stages((0.5,), (Constant(1), Step(0.1, 0.01, edges=(0.5,)))))
    0-50%: constant 1, 50-100%: step 0.1 -> 0.01 (edges 50%)
    """

    edges: tuple[float, ...]
    parts: tuple[Schedule, ...]

    def _check(self) -> None:
        _check_count(self, "parts", len(self.edges) + 1)

    def _at(self, x: float) -> float:
        stage = bisect_right(self.edges, x)
        return self.parts[stage]._at(_local(self.edges, stage, x))


Schedule = (
    Constant
    | Linear
    | Cosine
    | Polynomial
    | Exponential
    | InverseSqrt
    | Step
    | OneCycle
    | WSD
    | Piecewise
    | Stages
)
_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in get_args(Schedule)}

FAMILIES: Mapping[str, Callable[[float, float], Schedule]] = MappingProxyType(
    {
        "constant": lambda start, end: Constant(start),
        "linear": Linear,
        "cosine": Cosine,
        "polynomial": Polynomial,
        "exponential": Exponential,
        "inverse_sqrt": InverseSqrt,
        "step": Step,
        "wsd": lambda start, end: WSD(start, start, end, warmup=0.0),
    }
)
"""Shapes to search by name: each goes from `start` to `end`, only `constant` stays at `start`."""


def as_schedule(value: Schedule | float) -> Schedule:
    """A schedule as it is; a plain number as a constant one.

    >>> as_schedule(0.1)
    Constant(value=0.1)
    """
    return value if isinstance(value, Schedule) else Constant(value)


def warmed(schedule: Schedule, warmup: float) -> Schedule:
    """Rise linearly from 0 to the schedule's first value in the fraction `warmup` in [0, 1).

    All of the schedule then runs in what is left. A warm-up of 0 gives the schedule itself.

    >>> print(warmed(Constant(0.1), 0.05))
    0-5%: linear 0 -> 0.1, 5-100%: constant 0.1
    """
    if warmup == 0:
        return schedule
    return Stages((warmup,), (Linear(0.0, schedule(0.0)), schedule))


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """The schedule with all its values times `factor` (> 0 where the schedule needs values > 0).

    >>> scaled(OneCycle(0.1, 1.0, 0.0), 4)
    OneCycle(start=0.4, peak=4.0, end=0.0, peak_at=0.3, shape='cosine')
    """
    if isinstance(schedule, Stages):
        return replace(schedule, parts=tuple(scaled(part, factor) for part in schedule.parts))
    if isinstance(schedule, Piecewise):
        return replace(schedule, values=tuple(value * factor for value in schedule.values))
    old = {name: getattr(schedule, name) for name in _VALUES if hasattr(schedule, name)}
    new: dict[str, Any] = {name: value * factor for name, value in old.items()}
    return replace(schedule, **new)


def from_json(obj: Mapping[str, Any]) -> Schedule:
    """The schedule that `to_json` wrote.

    >>> from_json({"schedule": "Cosin", "version": 1, "start": 1, "end": 0})
    Traceback (most recent call last):
    ValueError: unknown schedule 'Cosin', did you mean 'Cosine'?

    Raises:
        ValueError: an unknown schedule, version or field, a missing field, or a bad value.
    """
    name = obj.get("schedule") if isinstance(obj, Mapping) else None
    if not isinstance(name, str):
        raise ValueError(f"a schedule must be a JSON object that names its schedule, got {obj!r}")
    if name not in _KINDS:
        kinds = {known.lower(): known for known in _KINDS}
        near = kinds[get_close_matches(name.lower(), kinds, n=1, cutoff=0.0)[0]]
        raise ValueError(f"unknown schedule {name!r}, did you mean {near!r}?")
    if obj.get("version") != VERSION:
        raise ValueError(f"{name}: version must be {VERSION}, got {obj.get('version')!r}")
    given = {key: value for key, value in obj.items() if key not in ("schedule", "version")}
    known = [field.name for field in fields(_KINDS[name])]
    if given.keys() != set(known):
        got = ", ".join(map(str, given))
        raise ValueError(f"{name}: its fields must be {', '.join(known)}; got {got}")
    if isinstance(given.get("parts"), list):
        given["parts"] = [_part(number, part) for number, part in enumerate(given["parts"], 1)]
    return cast(Schedule, _KINDS[name](**given))


def _part(number: int, obj: Mapping[str, Any]) -> Schedule:
    try:
        return from_json(obj)
    except ValueError as error:
        raise ValueError(f"Stages: part {number}: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_json() if isinstance(value, Schedule) else value


# What the formulas share.


def _between(start: float, end: float, weight: float) -> float:
    """From `start` (weight 0) to `end` (1): exact at both, monotone and never outside."""
    if weight >= 1.0:
        return end
    value = start + (end - start) * weight  # rounding may overshoot `end`, never `start`
    return min(value, end) if start <= end else max(value, end)


def _geometric(start: float, end: float, weight: float) -> float:
    return end if weight >= 1.0 else _clamp(start * (end / start) ** weight, start, end)


def _clamp(value: float, a: float, b: float) -> float:
    return min(max(value, a), b) if a <= b else min(max(value, b), a)


def _local(edges: tuple[float, ...], piece: int, x: float) -> float:
    """Progress within a piece."""
    low = edges[piece - 1] if piece else 0.0
    high = edges[piece] if piece < len(edges) else 1.0
    return (x - low) / (high - low)


# Text.


def _text(schedule: _Curve) -> str:
    if isinstance(schedule, Stages):
        knots = [_text_of("edges", x) for x in (0.0, *schedule.edges, 1.0)]
        spans = [f"{low[:-1]}-{high}" for low, high in pairwise(knots)]
        texts = [f"({part})" if isinstance(part, Stages) else str(part) for part in schedule.parts]
        return ", ".join(f"{span}: {text}" for span, text in zip(spans, texts, strict=True))
    own = {field.name: getattr(schedule, field.name) for field in fields(schedule)}
    values = " -> ".join(_text_of(name, own[name]) for name in own if name in _VALUES)
    if isinstance(schedule, Piecewise):
        own, values = (
            {"kind": own["kind"], "edges": own["edges"]},
            _text_of("values", own["values"]),
        )
    rest = ", ".join(f"{name} {_text_of(name, own[name])}" for name in own if name not in _VALUES)
    return f"{type(schedule).__name__.lower()} {values}" + (f" ({rest})" if rest else "")


def _text_of(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return (" -> " if name == "values" else " ").join(_text_of(name, item) for item in value)
    if isinstance(value, str):
        return value
    return f"{100 * value:.4g}%" if name in _FRACTIONS else f"{value:.4g}"


# Checks: of a field by its name, then of what several fields must have in common.


def _number(where: str, value: Any) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an int beyond all floats
            number = float(value)
            if -_LARGEST <= number <= _LARGEST:
                return number
    raise ValueError(f"{where} must be a finite number, got {value!r}")


def _positive(where: str, value: Any) -> float:
    if _number(where, value) <= 0.0:
        raise ValueError(f"{where} must be greater than 0, got {value!r}")
    return float(value)


def _sequence(where: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"{where} must be a tuple, got {value!r}")
    return tuple(value)


def _numbers(where: str, value: Any) -> tuple[float, ...]:
    numbered = enumerate(_sequence(where, value), 1)
    return tuple(_number(f"{where}: number {i}", item) for i, item in numbered)


def _edges(where: str, value: Any) -> tuple[float, ...]:
    edges = _numbers(where, value)
    for i, edge in enumerate(edges, 1):
        if not 0.0 < edge < 1.0:
            raise ValueError(f"{where}: number {i} must lie in (0, 1), got {edge}")
        if i > 1 and edge <= edges[i - 2]:
            raise ValueError(f"{where}: number {i} must be more than {edges[i - 2]}, got {edge}")
    return edges


def _parts(where: str, value: Any) -> tuple[Any, ...]:
    for i, part in enumerate(_sequence(where, value), 1):
        if not isinstance(part, Schedule):
            raise ValueError(f"{where}: part {i} must be a schedule, got {part!r}")
    return tuple(value)


def _one_of(*names: str) -> Callable[[str, Any], str]:
    def check(where: str, value: Any) -> str:
        if value not in names:
            raise ValueError(f"{where} must be one of {', '.join(names)}, got {value!r}")
        return str(value)

    return check


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "power": _positive,
    "edges": _edges,
    "values": _numbers,
    "parts": _parts,
    "shape": _one_of(*get_args(Shape)),
    "kind": _one_of(*get_args(Kind)),
}


def _check_ratio(owner: Exponential | InverseSqrt | Step) -> None:
    name = type(owner).__name__
    ratio = _positive(f"{name}: end", owner.end) / _positive(f"{name}: start", owner.start)
    if not 1e-150 < ratio < 1e150:
        raise ValueError(f"{name}: end / start is out of range, {owner.end} / {owner.start}")


def _check_count(owner: Piecewise | Stages, name: str, need: int) -> None:
    got = len(getattr(owner, name))
    if got != need:
        have = f"{len(owner.edges)} edges need {need} {name}"
        raise ValueError(f"{type(owner).__name__}: {have}, got {got}")
