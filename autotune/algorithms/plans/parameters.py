"""The searched parameters that change only the seconds per sample, and points that differ in them.

A trainer says of its keys, as its `effects`, what they change: `exact` and `rounding` ones are such
parameters, `statistical` and `both` are not (`trainers.technique.Effect`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product, zip_longest
from random import Random
from typing import Any

from autotune.algorithms.plans.probed import ProbedPlan
from autotune.errors import UserError, shown, unknown
from autotune.space.parameters import (
    Choice,
    Fixed,
    Float,
    Parameter,
    drawn,
    options,
    wanted_values,
)
from autotune.space.search_space import SearchSpace
from autotune.space.variants import key_of
from autotune.trial import Config, Params
from autotune.trial.trainer import said
from autotune.trial.values import point_key

PROBED_EFFECTS = ("rounding", "exact")  # those that promise most first: fewer bits take less time
EFFECTS = ("exact", "rounding", "statistical", "both")
_DEGREE = "_degree"  # ends the names of keys whose product is the number of ranks
_BESIDE = 20  # points of the search at which a plan is checked
_MOST = 5  # values of a whole number, three of a real one


def effects_of(train: Callable[..., Any]) -> Mapping[str, str]:
    """What a trainer's keys change of a training; empty where it does not say it.

    Raises:
        UserError: they are no dict of the four kinds of effect.
    """
    found = said(train, "effects", {})
    if not isinstance(found, Mapping):
        raise UserError(f"the trainer's effects must be a dict of keys but got {shown(found)}")
    for key, effect in found.items():
        if effect not in EFFECTS:
            problem = unknown("effect", effect, EFFECTS)
            raise UserError(f"the trainer's effects: {key} has an {problem}")
    return found


def probed_names(space: SearchSpace, effects: Mapping[str, str]) -> list[str]:
    """The searched parameters that change only the seconds per sample, in order of their promise.

    One that exists only beside a value of a parameter that is searched and not probed is left out:
    it has no value at most points, so that no probe says what it is worth, and is searched too.

    >>> space = SearchSpace({"lr": Float(0, 1), "fused": Choice((False, True))})
    >>> probed_names(space, {"fused": "exact", "lr": "statistical"})
    ['fused']
    """
    parameters = space.parameters()
    found: dict[str, str] = {}

    def settled(name: str) -> bool:
        """Whether it is known once all that is probed is fixed."""
        if name in found:
            return True
        if name in parameters and len(values(parameters[name])) > 1:
            return False
        entry = parameters.get(name, space.entries.get(name.partition(".")[0]))
        return all(settled(parent) for parent in getattr(entry, "when", None) or ())

    for name, parameter in parameters.items():  # parents before children
        effect = effects.get(key_of(name, parameter.when), "")
        searched = name in space.entries and len(values(parameter)) > 1
        if effect in PROBED_EFFECTS and searched and all(map(settled, parameter.when or ())):
            found[name] = effect
    return [n for kind in PROBED_EFFECTS for n, effect in found.items() if effect == kind]


def values(parameter: Parameter) -> list[Any]:
    """The values to probe: all options, or a few over a range.

    >>> from autotune.space.search_space import Int
    >>> values(Int(1, 9)), values(Float(1.0, 100.0, log=True))
    ([1, 3, 5, 7, 9], [1.0, 10.0, 100.0])
    """
    if isinstance(parameter, Float):
        low, high = parameter.low, parameter.high
        middle = math.sqrt(low * high) if parameter.log else (low + high) / 2
        return list(dict.fromkeys((low, middle, high)))
    every = options(parameter)
    if isinstance(parameter, Choice) or len(every) <= _MOST:
        return list(every)
    last = len(every) - 1
    return [every[round(i * last / (_MOST - 1))] for i in range(_MOST)]


@dataclass(frozen=True)
class ProbedParameters:
    """The parameters of a space whose values are probed, about one point.

    Args:
        space: what is searched.
        names: the parameters, those that promise most first.
        usual: the trainer's default of each key that has one.
        start: a point of the space, whose other parameters stay as they are.
        ranks: of a trial.
        allowed: whether the trainer takes a configuration.
        seed: of the points of the search at which plans are checked.
    """

    space: SearchSpace
    names: tuple[str, ...]
    usual: Mapping[str, Any]
    start: Params
    ranks: int = 1
    allowed: Callable[[Config], bool] = lambda config: True
    seed: int = 0

    @property
    def default(self) -> Params:
        """The point of the default plan."""
        return self.moved({})

    def moved(self, changes: Mapping[str, Any]) -> Params:
        """The point with some values changed; what exists only then has its default."""

        def value(name: str, parameter: Parameter) -> Any:
            for known in (changes, self.start):
                if name in known and not parameter.check(known[name]):
                    return known[name]
            return self._usual(name, parameter)

        return self.space.suggest(value)

    def fixed(self, point: Params) -> dict[str, Any]:
        """The values of all these parameters in the plan of a point."""
        parameters = self.space.parameters()
        return {n: point.get(n, self._usual(n, parameters[n])) for n in self.names}

    def alternatives(self) -> list[Params]:
        """The points that differ in one parameter, or in how the ranks are arranged as a mesh.

        First comes one value of each parameter, then the second ones, and so on.
        """
        degrees = [n for n in self.names if n.endswith(_DEGREE)]
        each = [self._values_of(name) for name in self.names if name not in degrees]
        turns = [[{name: value} for value in own] for name, own in each]
        if degrees:
            rounding = sum(n not in degrees for n in self.names[: self.names.index(degrees[0])])
            turns.insert(rounding, self._meshes(degrees))
        rows = (change for turn in zip_longest(*turns) for change in turn if change is not None)
        found = {point_key(point): point for change in rows if (point := self._point(change))}
        found.pop(point_key(self.default), None)
        return list(found.values())

    def together(self, plans: Sequence[ProbedPlan]) -> Params | None:
        """The point with the changes of several plans; None where they do not go together."""
        changes = {n: v for plan in plans for n, v in plan.point.items() if n in self.names}
        changes |= {n: v for plan in plans for n, v in plan.changes}
        point = self._point(changes)
        if point is None or any(point.get(n) != v for plan in plans for n, v in plan.changes):
            return None
        return point

    def _values_of(self, name: str) -> tuple[str, list[Any]]:
        """The other values of a parameter that exists at the default's point."""
        default = self.default
        if name not in default:
            return name, []
        own = values(self.space.parameters()[name])
        return name, [v for v in own if repr(v) != repr(default[name])]

    def _meshes(self, degrees: Collection[str]) -> list[dict[str, Any]]:
        """All other arrangements of the ranks than the default's."""
        parameters, default = self.space.parameters(), self.default
        every = product(*(values(parameters[name]) for name in degrees))
        made = [dict(zip(degrees, one, strict=True)) for one in every]
        return [m for m in made if any(m[name] != default.get(name, m[name]) for name in m)]

    def _point(self, changes: Mapping[str, Any]) -> Params | None:
        """The point with these changes, if the trainer and the number of ranks allow it.

        Also where the search may go: it must not be refused where the default plan is not.
        """
        point = self.moved(changes)
        config = self._config(point)
        if config is None or not self._fills(config) or not self.allowed(config):
            return None
        return point if all(self._takes(point, at) for at in self._beside) else None

    @cached_property
    def _beside(self) -> list[int]:
        """Numbers of the drawn points that the trainer takes in the default plan."""
        return [at for at in range(_BESIDE) if self._takes(self.default, at, broken=False)]

    def _takes(self, plan: Params, at: int, *, broken: bool = True) -> bool:
        """Whether the trainer takes a plan with the other values of a drawn point.

        Args:
            plan: a point that has it.
            at: the number of the drawn point. Its values do not depend on the plan.
            broken: what is said of a point that breaks a constraint; the search leaves it out.
        """
        fixed = self.fixed(plan)

        def value(name: str, parameter: Parameter) -> Any:
            if name in fixed:
                return fixed[name]
            return drawn(parameter, Random(f"{self.seed} {at} {name}"))

        config = self._config(self.space.suggest(value))
        return broken if config is None else self.allowed(config)

    def _config(self, point: Params) -> Config | None:
        """The configuration of a point, if it has one that breaks no constraint."""
        try:
            config = self.space.config(point)
        except ValueError:  # its schedules contradict each other
            return None
        return None if self.space.broken(config) else config

    def _fills(self, config: Config) -> bool:
        """Whether the degrees of a mesh make up the number of ranks; -1 is what is left."""
        names = [name for name in self.usual if name.endswith(_DEGREE)]
        degrees = [config.get(name, self.usual[name]) for name in names]
        known = math.prod(degree for degree in degrees if degree != -1)
        return self.ranks % known == 0 if -1 in degrees else not names or known == self.ranks

    def _usual(self, name: str, parameter: Parameter) -> Any:
        default = self.usual.get(key_of(name, parameter.when))
        if not parameter.check(default):
            return default
        return values(parameter)[0]


def first_plan(space: SearchSpace, names: Sequence[str]) -> dict[str, Any]:
    """A value of each parameter, until anything is known of any."""
    parameters = space.parameters()
    return {name: values(parameters[name])[0] for name in names}


def without(space: SearchSpace, fixed: Mapping[str, Any]) -> SearchSpace:
    """The space in which some parameters have one value, and what depends on others is gone.

    >>> space = SearchSpace({"a": Choice((1, 2)), "b": Float(1, 9, when={"a": 2})})
    >>> without(space, {"a": 1}).entries
    {'a': Fixed(value=1, when=None)}
    """
    entries: dict[str, Any] = {}
    gone: set[str] = set()
    for name, entry in space.entries.items():
        when = getattr(entry, "when", None) or {}
        if any(parent.partition(".")[0] in gone or _never(parent, w, fixed)
               for parent, w in when.items()):  # fmt: skip
            gone.add(name)
        elif name in fixed:
            entries[name] = Fixed(fixed[name], when=entry.when)
        else:
            entries[name] = entry
    return replace(space, entries=entries)


def _never(parent: str, wanted: Any, fixed: Mapping[str, Any]) -> bool:
    return parent in fixed and fixed[parent] not in wanted_values(wanted)


def within(space: SearchSpace, point: Params | None) -> Params | None:
    """What a narrower space has of a point; None where it has no such point.

    >>> within(SearchSpace({"a": Fixed(1), "b": Float(1, 9)}), {"a": 2, "b": 3})
    {'b': 3}
    """
    if point is None:
        return None
    names = space.parameters()
    try:
        return space.check({n: v for n, v in point.items() if n in names})
    except ValueError:
        return None


def extended(space: SearchSpace, point: Params, fixed: Mapping[str, Any]) -> Params:
    """The point of the whole space, with the fixed values where their conditions hold."""
    return space.suggest(lambda name, _: fixed[name] if name in fixed else point[name])
