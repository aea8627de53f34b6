"""A search space: parameters, conditions, constraints, and configurations of points.

A sampler gives a flat point, `{"lr.peak": 0.1, "batch_size": 128}`; a trainer gets a configuration,
`{"lr": Stages(...), "batch_size": 128}`. `SearchSpace` converts the one into the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from autotune import schedules
from autotune.errors import checked, shown, unknown
from autotune.schedules.analysis import Sketch, same_by_sketch, sketch
from autotune.space import coupling
from autotune.space.cardinality import Size, size
from autotune.space.conditions import check_condition
from autotune.space.constraints import Constraint, as_constraints
from autotune.space.parameters import (
    Choice,
    Fixed,
    Float,
    Int,
    Leaf,
    Parameter,
    active,
    allowed,
    drawn,
    instead_of,
    is_real,
    say_when,
)
from autotune.space.schedule_space import ScheduleSpace
from autotune.space.variants import key_of, keys_of
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
FIXED_ONLY = ("microbatch",)  # autotune lowers it where memory has run out


@dataclass(frozen=True)
class SearchSpace:
    """Named parameters, schedules and fixed values, with conditions and constraints.

    >>> space = SearchSpace({"lr": Float(0.01, 1, log=True), "epochs": Fixed(3)})
    >>> space.config({"lr": 0.1})
    {'lr': 0.1, 'epochs': 3}

    Raises:
        ValueError: a name that is reserved or not a name, a value that is no parameter, or a
            condition on a parameter that is not declared before it, or that can never hold.
    """

    entries: Mapping[str, Parameter | ScheduleSpace | Fixed]
    constraints: tuple[Constraint, ...] = ()

    @checked
    def __post_init__(self) -> None:
        if not isinstance(self.entries, Mapping):
            raise ValueError(f"SearchSpace entries must be a dict but got {shown(self.entries)}")
        object.__setattr__(self, "entries", dict(self.entries))
        object.__setattr__(self, "constraints", as_constraints(self.constraints))
        for name, entry in self.entries.items():
            if not isinstance(name, str) or not name or "." in name:
                raise ValueError(f"a parameter's name must be text without '.' but got {name!r}")
            key = key_of(name, getattr(entry, "when", None))
            if key in RESERVED:
                raise ValueError(f"{key!r} is reserved: autotune sets config[{key!r}] itself")
            if not isinstance(entry, Float | Int | Choice | Fixed | ScheduleSpace):
                kinds = "a Float, Int, Choice, Fixed or ScheduleSpace"
                use = f": use {instead}" if (instead := instead_of(entry)) else ""
                raise ValueError(f"{name} must be {kinds} but got {shown(entry)}{use}")
            if key in FIXED_ONLY and not isinstance(entry, Fixed):
                raise ValueError(
                    f"{name!r} may be Fixed only, as autotune lowers it where memory has run out, "
                    f"but got {shown(entry)}"
                )
        assert len(self._keys) == len(self.entries)
        coupling.check(self.entries)
        known: dict[str, Parameter | Fixed] = {}
        for name, parameter in self._leaves:
            check_condition(name, parameter.when, known)
            known[name] = parameter

    @cached_property
    def _keys(self) -> dict[str, str]:
        return keys_of(self.entries)

    @cached_property
    def _leaves(self) -> list[Leaf]:
        leaves: list[Leaf] = []
        for name, entry in self.entries.items():
            if isinstance(entry, ScheduleSpace):
                changes = coupling.changes(self.entries, entry.follows)
                leaves += entry.parameters(name, changes).items()
            else:
                coupled = isinstance(entry, Float) and entry.effective is not None
                leaves.append((f"{name}.effective" if coupled else name, entry))
        return leaves

    @cached_property
    def _effective(self) -> dict[str, str]:
        return coupling.effective(self.entries)

    def parameters(self) -> dict[str, Parameter]:
        """The searched parameters by flat name, parents before children."""
        return {n: p for n, p in self._leaves if not isinstance(p, Fixed)}

    def size(self) -> Size:
        """The size of the space.

        >>> print(SearchSpace({"lr": Float(0, 1), "n": Int(1, 4), "o": Choice((1, 2))}).size())
        1 shape with 3 parameters, infinitely many points
        """
        return size(self._leaves)

    def sample(self, count: int, seed: int = 0) -> list[Params]:
        """Points drawn at random, the same for the same seed."""
        random = Random(seed)
        return [self.suggest(lambda _, parameter: drawn(parameter, random)) for _ in range(count)]

    def duplicates(self, points: Sequence[Params]) -> list[tuple[int, ...]]:
        """Groups of points, by index, with equivalent configurations.

        Schedules are compared as functions by `schedules.same_meaning`: a polynomial of power 1 is
        a line.
        """
        groups: dict[Any, list[tuple[dict[str, Sketch], list[int]]]] = {}
        for i, point in enumerate(points):
            config = self.config(point)
            drawn = {k: sketch(v) for k, v in config.items() if isinstance(v, schedules.Schedule)}
            plain = tuple((k, None if k in drawn else repr(v)) for k, v in config.items())
            candidates = groups.setdefault(plain, [])
            for others, indices in candidates:
                if all(same_by_sketch(drawn[name], others[name]) for name in drawn):
                    indices.append(i)
                    break
            else:
                candidates.append((drawn, [i]))
        equal = (tuple(indices) for candidates in groups.values() for _, indices in candidates)
        return sorted(group for group in equal if len(group) > 1)

    def suggest(self, draw: Callable[[str, Parameter], Any]) -> Params:
        """A point: `draw` gives the value of each parameter whose condition holds, in order."""
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
        """The configuration of a point: with fixed values, and schedules built."""
        values: dict[str, Any] = {}
        for name, parameter in self._leaves:
            if active(parameter.when, values):
                values[name] = parameter.value if isinstance(parameter, Fixed) else params[name]
        for name, momentum in self._effective.items():
            if f"{name}.effective" in values:
                values[name] = values[f"{name}.effective"] * (1.0 - values.get(momentum, 0.0))
        config = {name: values[name] for name in self.entries if name in values}
        config |= coupling.build(self.entries, values)
        return {self._keys[name]: config[name] for name in self.entries if name in config}

    def check(self, params: Params) -> Params:
        """Validate a point: nothing missing, nothing unknown, every value in its range.

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
        (with schedules and any further keys). A configuration may be outside the space, with None
        as its point.
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
                named = {self._keys.get(name, name): value for name, value in given.items()}
                return {**self.config(params), **named}, params
        entries = {self._keys[name]: entry for name, entry in self.entries.items()}
        for name in given:
            if name not in entries and name not in parameters:
                known = [*entries, *parameters]
                raise ValueError(unknown("parameter", name, known))
        for name in flat:
            if name in fixed and not given.keys() <= entries.keys():
                raise ValueError(f"{name} is fixed at {fixed[name]!r} but got {flat[name]!r}")
        for name in given:
            if name not in entries:
                raise ValueError(f"{name} is part of a point, and the rest is a configuration")
        config: dict[str, Any] = {k: _ready(entries[k], v) for k, v in given.items()}
        for name, entry in self.entries.items():
            if isinstance(entry, Fixed) and active(entry.when, config):
                config.setdefault(self._keys[name], entry.value)
        return {name: config[name] for name in entries if name in config}, None

    def _with_effective(self, flat: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration's values, with effective ones where these are searched."""
        known = {**self._fixed(), **given}
        point = dict(flat)
        for name, momentum in self._effective.items():
            value, other = flat.get(name), known.get(momentum, 0.0)
            if is_real(value) and is_real(other) and other < 1:
                del point[name]
                point[f"{name}.effective"] = value / (1.0 - other)
        return point

    def broken(self, config: Config) -> str:
        """The text of the first constraint that `config` violates, or an empty string.

        Raises:
            UserError: a constraint raised an exception, or returned neither True nor False.
        """
        for constraint in self.constraints:
            if constraint.is_broken(config):
                return constraint.text
        return ""

    def _fixed(self) -> dict[str, Any]:
        return {n: p.value for n, p in self._leaves if isinstance(p, Fixed)}


def _ready(entry: Parameter | ScheduleSpace | Fixed, value: Any) -> Any:
    """A number where a schedule is searched, as a schedule."""
    is_schedule = isinstance(entry, ScheduleSpace)
    return schedules.as_schedule(value) if is_schedule and is_real(value) else value
