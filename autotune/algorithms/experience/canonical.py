"""Names that mean the same in every study: how one space's points are read in another.

A point of a space becomes a *canonical point*: values by names such as `lr`, `batch_size` and
`weight_decay`. Names that are spelled differently by trainers (`learning_rate`, `base_lr`) get one
name; all others keep their own, so two spaces of one trainer always understand each other. Entries
that give one key under different conditions (`lr:sgd`, `lr:adamw`) have one name, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from autotune.algorithms.experience.alternatives import either, exclude
from autotune.algorithms.experience.names import (
    AMBIGUOUS,
    EFFECTIVE_LR,
    LR,
    MOMENTUM,
    OPTIMIZER,
    canonical_name,
    canonical_optimizer,
    is_neural,
    said_name,
    spelled,
    takes_settings_of,
)
from autotune.schedules import Constant
from autotune.space.parameters import (
    Choice,
    Fixed,
    Float,
    Parameter,
    active,
    is_real,
)
from autotune.space.schedule_space import RULES, ScheduleSpace
from autotune.space.search_space import SearchSpace
from autotune.space.variants import key_of
from autotune.trial import Params

__all__ = ["OPTIMIZER", "CanonicalSpace"]

_LEAST_FRICTION = 1e-4  # the least 1 - momentum, as a momentum may be 1


@dataclass(frozen=True)
class CanonicalSpace:
    """A search space in canonical names.

    Args:
        space: the space.
        said: canonical names of some of its parameters; the others get theirs by their names.
    """

    space: SearchSpace
    said: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> dict[str, str]:
        """The canonical name of each searched parameter, by its flat name.

        Several get one name where their conditions exclude each other. Otherwise the first has it,
        those first of which the experiment says so, and the others have none.
        """
        flats = self.space.parameters()
        having: dict[str, list[str]] = {}
        for flat in sorted(flats, key=lambda flat: not self._named(flat)[1]):
            name = self._name(flat)
            others = having.setdefault(LR if name in self._rates else name, [])
            if all(exclude(flat, other, flats) for other in others):
                others.append(flat)
        named = {flat for several in having.values() for flat in several}
        return {flat: self._name(flat) for flat in flats if flat in named}

    @cached_property
    def searched(self) -> dict[str, Parameter]:
        """The searched parameters by canonical name; of several, all that any of them can be."""
        parameters, found = self.space.parameters(), dict[str, Parameter]()
        for flat, name in self.names.items():
            own = parameters[flat]
            found[name] = either(found[name], own) if name in found else own
        return found

    @cached_property
    def fixed(self) -> dict[str, Any]:
        """The fixed numbers, and the fixed optimizer, by canonical name; those of every point."""
        return {name: value for name, entry, value in self._fixed if not entry.when}

    @cached_property
    def known(self) -> tuple[str, ...]:
        """The canonical names that points of this space can have."""
        names = dict.fromkeys([*self.searched, *(name for name, _, _ in self._fixed)])
        if self._rates & names.keys():
            names |= dict.fromkeys([LR] if names.keys() & self._rates - {EFFECTIVE_LR} else [])
            names |= dict.fromkeys([LR, EFFECTIVE_LR] if MOMENTUM in names else [])
        return tuple(names)

    @cached_property
    def neural(self) -> bool:
        """Whether a name says that this is the training of a neural network.

        Only then are ambiguous names taken for those of one.
        """
        clear = (self._clear(flat) for flat in [*self.space.parameters(), *self.space.entries])
        return is_neural(name for name in clear if name is not None)

    def same(self, name: str) -> tuple[str, ...]:
        """The canonical names by which another space may have what this one searches as `name`."""
        return (name, LR) if name in self._rates and name != LR else (name,)

    def optimizers(self) -> tuple[Any, ...] | None:
        """The optimizers that a configuration may have; None where the space does not say."""
        parameter = self.searched.get(OPTIMIZER)
        if isinstance(parameter, Choice):
            return tuple(dict.fromkeys(map(canonical_optimizer, parameter.options)))
        return (self.fixed[OPTIMIZER],) if OPTIMIZER in self.fixed else None

    @cached_property
    def texts(self) -> dict[str, tuple[Any, ...]]:
        """The options of choices, by canonical name, and the optimizers; also as they are spelled.

        By these a summary's checksums are read.
        """
        choices = {n: p.options for n, p in self.searched.items() if isinstance(p, Choice)}
        found = {name: tuple(options) for name, options in choices.items()}
        own = self.optimizers()
        return found if own is None else {**found, OPTIMIZER: (*found.get(OPTIMIZER, ()), *own)}

    def adopted(self, point: Mapping[str, Any]) -> dict[str, Any] | None:
        """A canonical point of another space, with its optimizer as this one calls it.

        None where this space has neither its optimizer nor one that takes the same settings.
        """
        allowed, found = self.optimizers(), dict(point)
        if allowed is None or OPTIMIZER not in point:
            return found
        theirs, decays = canonical_optimizer(point[OPTIMIZER]), "weight_decay" in self.known
        ours = [own for own in allowed if takes_settings_of(own, theirs, decays)]
        found[OPTIMIZER] = theirs if theirs in ours or not ours else ours[0]
        return found if ours else None

    def point(self, params: Params) -> dict[str, Any]:
        """The canonical point: fixed values, the learning rate and, with a momentum, the effective.

        A rate that follows the batch size is that at the point's own.
        """
        values = {**self.fixed, **{self.names[k]: v for k, v in params.items() if k in self.names}}
        if self._conditional:
            values = {**self._conditional_values(params), **values}
        if OPTIMIZER in values:
            values[OPTIMIZER] = canonical_optimizer(values[OPTIMIZER])
        for flat, factor in self._following.items():
            if is_real(params.get(flat)):
                values[LR] = params[flat] * factor(values)
        momentum: Any = values.get(MOMENTUM)
        if not is_real(momentum) or not 0 <= momentum <= 1:
            return values
        friction = max(1.0 - momentum, _LEAST_FRICTION)
        if is_real(values.get(LR)):
            values.setdefault(EFFECTIVE_LR, values[LR] / friction)
        elif is_real(values.get(EFFECTIVE_LR)):
            values.setdefault(LR, values[EFFECTIVE_LR] * friction)
        return values

    def value(self, flat: str, point: Mapping[str, Any], default: Any = None) -> Any:
        """What a canonical point, of any space, says of a searched parameter; else `default`.

        Of a rate that follows the batch size, the one at this space's reference; of an optimizer,
        its name here.
        """
        name = self.names.get(flat)
        if flat in self._following and is_real(point.get(LR)):
            return point[LR] / self._following[flat](point)
        if name is None or name not in point:
            return default
        parameter = self.space.parameters()[flat]
        if name == OPTIMIZER and isinstance(parameter, Choice):
            theirs = canonical_optimizer(point[name])
            same = (option for option in parameter.options if canonical_optimizer(option) == theirs)
            return next(same, point[name])
        return point[name]

    @cached_property
    def _following(self) -> dict[str, Callable[[Mapping[str, Any]], float]]:
        """For searched rates that hold at one batch size, the factors at a point's."""
        found: dict[str, Callable[[Mapping[str, Any]], float]] = {}
        for flat, name in self.names.items():
            entry = self.space.entries.get(flat.partition(".")[0])
            if isinstance(entry, ScheduleSpace) and LR != name == _name_at_reference(entry):
                batch = self._named(str(entry.follows))[0]
                found[flat] = partial(_factor, entry=entry, batch=batch)
        return found

    @cached_property
    def _rates(self) -> frozenset[str]:
        """The names of learning rates: itself, the effective one, and those at a batch size."""
        schedules = [e for e in self.space.entries.values() if isinstance(e, ScheduleSpace)]
        return frozenset((LR, EFFECTIVE_LR, *map(_name_at_reference, schedules)))

    @cached_property
    def _fixed(self) -> list[tuple[str, Fixed, Any]]:
        """The canonical name, entry and value of what is fixed and known to others."""
        found = []
        for flat, entry in self.space.entries.items():
            if not isinstance(entry, Fixed):
                continue
            name, value = self._named(flat)[0], entry.value
            value = value.value if isinstance(value, Constant) else value
            if name == OPTIMIZER and isinstance(value, str):
                value = canonical_optimizer(value)
            elif not is_real(value):
                continue
            if entry.when or name not in self.searched:
                found.append((name, entry, value))
        return found

    @cached_property
    def _conditional(self) -> bool:
        return any(entry.when for _, entry, _ in self._fixed)

    def _conditional_values(self, params: Params) -> dict[str, Any]:
        """The fixed values that a point has by its conditions."""
        known = dict(params)
        for flat, entry in self.space.entries.items():
            if isinstance(entry, Fixed) and active(entry.when, known):
                known[flat] = entry.value
        return {
            name: v for name, entry, v in self._fixed if entry.when and active(entry.when, known)
        }

    def _named(self, flat: str) -> tuple[str, bool]:
        """The canonical name that a flat one means, and whether the experiment says so."""
        meant, keyed = self._said(flat), self._keyed(flat)
        if meant is not None:
            return meant, True
        plain = spelled(keyed)
        return plain if plain in AMBIGUOUS and not self.neural else canonical_name(keyed), False

    def _clear(self, flat: str) -> str | None:
        """The canonical name of a flat one; None where it is ambiguous."""
        meant, keyed = self._said(flat), self._keyed(flat)
        if meant is not None:
            return meant
        return None if spelled(keyed) in AMBIGUOUS else canonical_name(keyed)

    def _said(self, flat: str) -> str | None:
        """What the experiment says of a flat name, or of its key."""
        said = (said_name(name, self.said) for name in (flat, self._keyed(flat)))
        return next((meant for meant in said if meant is not None), None)

    def _keyed(self, flat: str) -> str:
        """A flat name with the key of the configuration in place of the entry's name."""
        entry, dot, rest = flat.partition(".")
        return f"{key_of(entry, getattr(self.space.entries.get(entry), 'when', None))}{dot}{rest}"

    def _name(self, flat: str) -> str:
        name, entry = self._named(flat)[0], self.space.entries.get(flat.split(".")[0])
        if name == LR and isinstance(entry, Float | ScheduleSpace) and entry.effective is not None:
            return EFFECTIVE_LR
        if name == LR and isinstance(entry, ScheduleSpace):
            return _name_at_reference(entry)
        return name


def _name_at_reference(space: ScheduleSpace) -> str:
    """The name of a searched peak, which may be that at another batch size than a trial's."""
    fixed = isinstance(space.rule, str) and RULES[space.rule]
    return f"{LR}_at_{space.reference:g}" if space.reference is not None and fixed else LR


def _factor(point: Mapping[str, Any], entry: ScheduleSpace, batch: str) -> float:
    """A point's learning rate over that at the reference; 1 where its batch size is unknown."""
    size: Any = point.get(batch)
    if not is_real(size) or not size > 0 or entry.reference is None:
        return 1.0
    return float((size / entry.reference) ** RULES[str(entry.rule)])
