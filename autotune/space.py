"""What is searched: parameters, conditions, constraints, and the configuration they make.

A sampler sees a flat point, `{"lr.peak": 0.1, "batch_size": 128}`; a trainer sees a configuration,
`{"lr": Stages(...), "batch_size": 128}`. `SearchSpace` turns the one into the other.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from autotune import schedules
from autotune.errors import UserError, unknown
from autotune.parameters import (
    Choice,
    Fixed,
    Float,
    Int,
    Parameter,
    When,
    active,
    allowed,
    drawn,
    options,
    say_when,
    wanted_values,
)
from autotune.schedule_space import ScheduleSpace, following, mirrored, with_momentum
from autotune.schedules.analysis import Glimpse, glimpse, same_at_a_glimpse
from autotune.trial import Config, Params

__all__ = [
    "Choice",
    "Constraint",
    "Fixed",
    "Float",
    "Int",
    "Parameter",
    "ScheduleSpace",
    "SearchSpace",
    "Size",
]

RESERVED = ("seed", "state")
_Leaf = tuple[str, Parameter | Fixed]
_COUPLINGS = ("mirrors", "follows", "effective")


@dataclass(frozen=True)
class Constraint:
    """A rule between parameters: `holds(config)` must be true, or the trial is INFEASIBLE."""

    text: str
    holds: Callable[[Config], bool]


@dataclass(frozen=True)
class Size:
    """How large a search space is.

    Args:
        shapes: combinations of the values on which the existence of other parameters depends.
        least, most: the fewest and the most parameters that one point has.
        points: how many points there are, infinite where a real number is searched.
    """

    shapes: int
    least: int
    most: int
    points: float

    def with_all(self, other: Size) -> Size:
        """The size of both together, where neither depends on the other."""
        least, most = self.least + other.least, self.most + other.most
        return Size(self.shapes * other.shapes, least, most, self.points * other.points)

    def __str__(self) -> str:
        shapes = f"{self.shapes} shape{'s' if self.shapes > 1 else ''}"
        each = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        points = "infinitely many" if math.isinf(self.points) else f"{self.points:.0f}"
        return f"{shapes} with {each} parameters, {points} points"


@dataclass(frozen=True)
class SearchSpace:
    """Named parameters, schedules and fixed values, with conditions and constraints.

    >>> space = SearchSpace({"lr": Float(0.01, 1, log=True), "epochs": Fixed(3)})
    >>> space.config({"lr": 0.1})
    {'lr': 0.1, 'epochs': 3}

    Raises:
        ValueError: a name that is reserved or not a name, a value that is no parameter, or a
            condition on a parameter that is not declared before it or cannot take the value.
    """

    entries: Mapping[str, Parameter | ScheduleSpace | Fixed]
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", dict(self.entries))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        for name, entry in self.entries.items():
            if not isinstance(name, str) or not name or "." in name:
                raise ValueError(f"a parameter's name must be text without '.' but got {name!r}")
            if name in RESERVED:
                raise ValueError(f"{name!r} is reserved: autotune sets config[{name!r}] itself")
            if not isinstance(entry, Float | Int | Choice | Fixed | ScheduleSpace):
                raise ValueError(
                    f"{name} must be a Float, Int, Choice, Fixed or ScheduleSpace but got {entry!r}"
                )
        self._check_couplings()
        known: dict[str, Parameter | Fixed] = {}
        for name, parameter in self._leaves:
            _check_when(name, parameter.when, known)
            known[name] = parameter

    def _check_couplings(self) -> None:
        for name, entry in self.entries.items():
            for coupling in _COUPLINGS:
                other = getattr(entry, coupling, None)
                if other is None:
                    continue
                if other not in self.entries or other == name:
                    others = set(self.entries) - {name}
                    raise ValueError(f"{name}: {coupling}: {unknown('entry', other, others)}")
                where, coupled = f"{name}: {coupling}: {other}", self.entries[other]
                _check_coupling(where, coupling, coupled)
                if isinstance(entry, Float) and not _is_plain(coupled):
                    raise ValueError(f"{where} must be a plain number but got {coupled!r}")

    @cached_property
    def _leaves(self) -> list[_Leaf]:
        leaves: list[_Leaf] = []
        for name, entry in self.entries.items():
            if isinstance(entry, ScheduleSpace):
                leaves += entry.parameters(name, self._changes(entry.follows)).items()
            else:
                coupled = isinstance(entry, Float) and entry.effective is not None
                leaves.append((f"{name}.effective" if coupled else name, entry))
        return leaves

    @cached_property
    def _effective(self) -> dict[str, str]:
        """The numbers of which the effective value is searched, each with its momentum."""
        floats = {n: e for n, e in self.entries.items() if isinstance(e, Float)}
        return {n: e.effective for n, e in floats.items() if e.effective is not None}

    def _changes(self, followed: str | None) -> When | None:
        """When the schedule that another follows is not constant; None: never."""
        entry = self.entries.get(followed or "")
        if isinstance(entry, Fixed) and isinstance(entry.value, schedules.Schedule):
            low, high = schedules.extremes(entry.value)
            return dict(entry.when or {}) if low < high else None
        if not isinstance(entry, ScheduleSpace):
            return None
        changing = tuple(f for f in entry.families if f != "constant")
        return {f"{followed}.family": changing} if changing else None

    def parameters(self) -> dict[str, Parameter]:
        """The searched parameters by flat name, parents before children."""
        return {n: p for n, p in self._leaves if not isinstance(p, Fixed)}

    def size(self) -> Size:
        """How large the space is.

        >>> print(SearchSpace({"lr": Float(0, 1), "n": Int(1, 4), "o": Choice((1, 2))}).size())
        1 shape with 3 parameters, infinitely many points
        """
        parents = {parent for _, parameter in self._leaves for parent in parameter.when or {}}
        total = Size(1, 0, 0, 1)
        for group in _depending(self._leaves):
            counted = list(_counted(group, parents, {}, 0, 1))
            searched = [count for count, _ in counted]
            points = sum(points for _, points in counted)
            total = total.with_all(Size(len(counted), min(searched), max(searched), points))
        return total

    def sample(self, count: int, seed: int = 0) -> list[Params]:
        """Points drawn at random, the same for the same seed."""
        random = Random(seed)
        return [self.suggest(lambda _, parameter: drawn(parameter, random)) for _ in range(count)]

    def duplicates(self, points: Sequence[Params]) -> list[tuple[int, ...]]:
        """Groups of points, by index, whose configurations mean the same.

        Schedules are compared by `schedules.same_meaning`, however they are written: a polynomial
        of power 1 is a line.
        """
        groups: dict[Any, list[tuple[dict[str, Glimpse], list[int]]]] = {}
        for i, point in enumerate(points):
            config = self.config(point)
            drawn = {k: glimpse(v) for k, v in config.items() if isinstance(v, schedules.Schedule)}
            plain = tuple((k, None if k in drawn else repr(v)) for k, v in config.items())
            alike = groups.setdefault(plain, [])
            for others, found in alike:
                if all(same_at_a_glimpse(drawn[name], others[name]) for name in drawn):
                    found.append(i)
                    break
            else:
                alike.append((drawn, [i]))
        found_all = (tuple(found) for alike in groups.values() for _, found in alike)
        return sorted(group for group in found_all if len(group) > 1)

    def suggest(self, draw: Callable[[str, Parameter], Any]) -> Params:
        """A point: `draw` is asked for each parameter whose condition holds, in order."""
        values: dict[str, Any] = {}
        point: dict[str, Any] = {}
        for name, parameter in self._leaves:
            if not active(parameter.when, values):
                continue
            if isinstance(parameter, Fixed):
                values[name] = parameter.value
            else:
                values[name] = point[name] = draw(name, parameter)
        return point

    def config(self, params: Params) -> dict[str, Any]:
        """The configuration that a point stands for: fixed values added, schedules built."""
        values: dict[str, Any] = {}
        for name, parameter in self._leaves:
            if active(parameter.when, values):
                values[name] = parameter.value if isinstance(parameter, Fixed) else params[name]
        for name, momentum in self._effective.items():
            if f"{name}.effective" in values:
                values[name] = values[f"{name}.effective"] * (1.0 - values.get(momentum, 0.0))
        config = {name: values[name] for name in self.entries if name in values}
        config |= self._schedules(values)
        return {name: config[name] for name in self.entries if name in config}

    def _schedules(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The schedules that drawn values stand for: each by itself, then what couples them."""
        spaces = {
            name: (entry, _fields_of(name, values))
            for name, entry in self.entries.items()
            if isinstance(entry, ScheduleSpace) and f"{name}.family" in values
        }
        built: dict[str, Any] = {
            name: space.build(own)
            for name, (space, own) in spaces.items()
            if own["family"] != "mirror"
        }
        alone = {**values, **built}
        for name, (space, own) in spaces.items():
            if own["family"] == "mirror":
                built[name] = mirrored(own, alone.get(str(space.mirrors)))
        known = {**values, **built}
        for name, (space, own) in spaces.items():
            if space.effective in known:
                built[name] = with_momentum(built[name], known[space.effective])
            if space.follows in known:
                rule = own.get("rule", space.steady_rule)
                built[name] = following(built[name], known[space.follows], rule)
        return built

    def check(self, params: Params) -> Params:
        """`params` with nothing missing, nothing unknown, and every value inside its range.

        Raises:
            ValueError: naming the key, the value, what is allowed, and the nearest right name.
        """
        parameters = self.parameters()
        for name in params:
            if name not in parameters:
                raise ValueError(unknown("parameter", name, parameters))

        def given(name: str, parameter: Parameter) -> Any:
            if name not in params:
                raise ValueError(f"{name} is missing: it must be {allowed(parameter)}")
            value = params[name]
            if parameter.check(value):
                raise ValueError(f"{name} must be {parameter.check(value)} but got {value!r}")
            return value

        point = self.suggest(given)
        for name in params:
            if name not in point:
                when = parameters[name].when
                raise ValueError(f"{name} is given but exists only when {say_when(when)}")
        return point

    def complete(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], Params | None]:
        """A user's configuration, and its point in the space if it has one.

        `given` is either a point (flat names; fixed values may be left out) or a configuration
        (ready schedules and any further keys), which may lie outside the space: its point is None.
        """
        parameters, fixed = self.parameters(), self._fixed()
        flat = {k: v for k, v in given.items() if not (k in fixed and fixed[k] == v)}
        if all(k in parameters for k in flat):
            params = self.check(flat)
            return self.config(params), params
        point = self._with_effective(flat, given)
        if all(k in parameters for k in point):
            with contextlib.suppress(ValueError):  # a configuration may lie outside
                params = self.check(point)
                return {**self.config(params), **given}, params
        for name in given:
            if name not in self.entries and name not in parameters:
                known = [*self.entries, *parameters]
                raise ValueError(unknown("parameter", name, known))
        for name in flat:
            if name in fixed and not given.keys() <= self.entries.keys():
                raise ValueError(f"{name} is fixed at {fixed[name]!r} but got {flat[name]!r}")
        for name in given:
            if name not in self.entries:
                raise ValueError(f"{name} is part of a point, and the rest is a configuration")
        config: dict[str, Any] = {k: self._ready(k, v) for k, v in given.items()}
        for name, entry in self.entries.items():
            if isinstance(entry, Fixed) and active(entry.when, config):
                config.setdefault(name, entry.value)
        return {name: config[name] for name in self.entries if name in config}, None

    def _with_effective(self, flat: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """A configuration's numbers, with the effective values that are searched in their place."""
        known = {**self._fixed(), **given}
        point = dict(flat)
        for name, momentum in self._effective.items():
            value, other = flat.get(name), known.get(momentum, 0.0)
            if _is_real(value) and _is_real(other) and other < 1:
                del point[name]
                point[f"{name}.effective"] = value / (1.0 - other)
        return point

    def _ready(self, name: str, value: Any) -> Any:
        is_schedule = isinstance(self.entries[name], ScheduleSpace)
        return schedules.as_schedule(value) if is_schedule and _is_real(value) else value

    def broken(self, config: Config) -> str:
        """The text of the first constraint that `config` breaks, or an empty string.

        Raises:
            UserError: a constraint that cannot be computed, say from a value that is conditional.
        """
        for constraint in self.constraints:
            try:
                holds = constraint.holds(config)
            except Exception as error:
                line = f"{type(error).__name__}: {error}"
                raise UserError(f"constraint {constraint.text!r} raised {line}") from error
            if not holds:
                return constraint.text
        return ""

    def _fixed(self) -> dict[str, Any]:
        return {n: p.value for n, p in self._leaves if isinstance(p, Fixed)}


def _check_when(name: str, when: When | None, known: Mapping[str, Parameter | Fixed]) -> None:
    for parent, wanted in (when or {}).items():
        if parent not in known:
            raise ValueError(
                f"{name}: when: {unknown('parameter declared before it', parent, known)}"
            )
        parameter = known[parent]
        if isinstance(parameter, Fixed):
            continue
        for value in wanted_values(wanted):
            if parameter.check(value):
                raise ValueError(f"{name}: when: {parent} can never be {value!r}")


def _check_coupling(where: str, coupling: str, other: Any) -> None:
    """What a schedule is coupled to must be a schedule or a number, in the range that it needs."""
    if isinstance(other, Choice) or (isinstance(other, Fixed) and not _is_number(other.value)):
        raise ValueError(f"{where} must be a schedule or a number but got {other!r}")
    if isinstance(other, ScheduleSpace) and coupling == "mirrors" and "mirror" in other.families:
        raise ValueError(f"{where} is itself a mirror")
    low, high = _span(other)
    if coupling == "effective" and not 0 <= low <= high < 1:
        raise ValueError(f"{where} must lie in [0, 1) but goes from {low:g} to {high:g}")
    if coupling == "follows" and not low > 0:
        raise ValueError(f"{where} must be greater than 0 but goes down to {low:g}")


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_plain(entry: Any) -> bool:
    """Whether an entry is a number, searched as it is or fixed."""
    if isinstance(entry, Fixed):
        return _is_real(entry.value)
    return isinstance(entry, Int) or (isinstance(entry, Float) and entry.effective is None)


def _is_number(value: Any) -> bool:
    return _is_real(value) or isinstance(value, schedules.Schedule)


def _span(entry: Any) -> tuple[float, float]:
    """The least and the greatest value that an entry can take."""
    if isinstance(entry, ScheduleSpace):
        return entry.span
    if isinstance(entry, Fixed):
        return schedules.extremes(schedules.as_schedule(entry.value))
    return float(entry.low), float(entry.high)


def _fields_of(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The drawn fields of one schedule, by field name."""
    start = f"{name}."
    return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}


def _count(parameter: Parameter) -> float:
    return math.inf if isinstance(parameter, Float) else len(options(parameter))


def _depending(leaves: Sequence[_Leaf]) -> list[list[_Leaf]]:
    """The parameters in groups that do not depend on each other, each in its order."""
    groups: list[list[_Leaf]] = []
    for leaf in leaves:
        parents = leaf[1].when or {}
        related = [g for g in groups if any(name in parents for name, _ in g)]
        groups = [g for g in groups if g not in related]
        groups.append([*(own for g in related for own in g), leaf])
    return groups


def _counted(
    leaves: Sequence[_Leaf], parents: set[str], values: dict[str, Any], searched: int, points: float
) -> Iterator[tuple[int, float]]:
    """For each combination of what others depend on: parameters searched, and points."""
    for i, (name, parameter) in enumerate(leaves):
        if not active(parameter.when, values):
            continue
        if isinstance(parameter, Fixed):
            values = {**values, name: parameter.value}
        elif name not in parents:
            searched, points = searched + 1, points * _count(parameter)
        elif isinstance(parameter, Float):
            values, searched, points = {**values, name: None}, searched + 1, math.inf
        else:
            for value in options(parameter):
                rest = leaves[i + 1 :], parents, {**values, name: value}
                yield from _counted(*rest, searched + 1, points)
            return
    yield searched, points
