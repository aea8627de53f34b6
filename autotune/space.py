"""What is searched: parameters, conditions, constraints, and the configuration they make.

A sampler sees a flat point, `{"lr.peak": 0.1, "batch_size": 128}`; a trainer sees a configuration,
`{"lr": Stages(...), "batch_size": 128}`. `SearchSpace` turns the one into the other.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from itertools import product
from typing import Any

from autotune import schedules
from autotune.errors import UserError
from autotune.trial import Config, Params

RESERVED = ("seed", "state")
When = Mapping[str, Any]


@dataclass(frozen=True)
class Float:
    """A real number in [low, high], both included; `log` searches its logarithm.

    `when={"optimizer": ("lars", "lamb")}` makes it exist only if the named parameter, declared
    before it, has (one of) the given value(s).
    """

    low: float
    high: float
    _: KW_ONLY
    log: bool = False
    when: When | None = None

    def __post_init__(self) -> None:
        _check_range("Float", self.low, self.high, self.log)

    def check(self, value: Any) -> str:
        """Why `value` is not allowed, or an empty string."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "a number"
        inside = self.low <= value <= self.high
        return "" if inside else f"a number from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Int:
    """A whole number in [low, high], both included, in steps of `step` from `low`.

    `power_of_two` allows only powers of two.
    """

    low: int
    high: int
    _: KW_ONLY
    log: bool = False
    step: int = 1
    power_of_two: bool = False
    when: When | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"Int {name} must be a whole number but got {value!r}")
        _check_range("Int", self.low, self.high, self.log)
        if self.step < 1 or (self.log and self.step != 1):
            raise ValueError(f"Int step must be >= 1, and 1 when log, but got {self.step!r}")
        if self.power_of_two and (not _is_power(self.low) or not _is_power(self.high)):
            raise ValueError(
                f"Int({self.low}, {self.high}, power_of_two=True): both ends must be powers of two"
            )

    def check(self, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            return "a whole number"
        inside = self.low <= value <= self.high
        if self.power_of_two and not (inside and _is_power(value)):
            return f"a power of two from {self.low} to {self.high}"
        on_grid = (value - self.low) % self.step == 0
        stepped = f" in steps of {self.step}" if self.step > 1 else ""
        return (
            "" if inside and on_grid else f"a whole number from {self.low} to {self.high}{stepped}"
        )


@dataclass(frozen=True)
class Choice:
    """One of several values: strings, numbers, booleans or None."""

    options: tuple[Any, ...]
    _: KW_ONLY
    when: When | None = None

    def __post_init__(self) -> None:
        if isinstance(self.options, str) or not isinstance(self.options, Iterable):
            raise ValueError(f"Choice needs a list of options but got {self.options!r}")
        object.__setattr__(self, "options", tuple(self.options))
        if not self.options:
            raise ValueError("Choice needs at least one option but got none")
        if len(set(map(repr, self.options))) < len(self.options):
            raise ValueError(f"Choice options must differ but got {self.options!r}")
        for option in self.options:
            if option is not None and not isinstance(option, str | int | float):
                raise ValueError(
                    f"Choice options must be strings, numbers, booleans or None but got {option!r}"
                )
            if isinstance(option, float) and not math.isfinite(option):
                raise ValueError(f"Choice options must be finite but got {option!r}")

    def check(self, value: Any) -> str:
        return "" if value in self.options else f"one of {', '.join(map(repr, self.options))}"


@dataclass(frozen=True)
class Fixed:
    """A value that is not searched but belongs to the configuration."""

    value: Any
    _: KW_ONLY
    when: When | None = None


Parameter = Float | Int | Choice


@dataclass(frozen=True)
class ScheduleSpace:
    """A schedule, searched by searching its fields; in the configuration, a ready value.

    The schedule warms up linearly from 0 for the share `warmup` of the horizon, then runs from
    `peak` to `final * peak` in the shape `family` (names of `schedules.FAMILIES`). Each field is a
    parameter, or a value that stays. As flat parameters they are `NAME.family`, `NAME.peak`, ...
    """

    peak: Float | Int | float
    _: KW_ONLY
    family: Choice | str = "cosine"
    final: Float | float = 0.0
    warmup: Float | float = 0.0
    when: When | None = None

    def __post_init__(self) -> None:
        names = self.family.options if isinstance(self.family, Choice) else (self.family,)
        for name in names:
            if name not in schedules.FAMILIES:
                raise ValueError(unknown("schedule family", name, schedules.FAMILIES))
        low, high = _bounds(self.warmup)
        if not 0 <= low <= high < 1:
            raise ValueError(f"ScheduleSpace warmup must lie in [0, 1) but got {self.warmup!r}")
        for name in names:
            for peak, final in product(_bounds(self.peak), _bounds(self.final)):
                try:
                    self.build({"family": name, "peak": peak, "final": final, "warmup": low})
                except ValueError as error:
                    at = f"with peak {peak!r} and final {final!r}"
                    raise ValueError(f"ScheduleSpace {name} {at}: {error}") from None

    def fields(self) -> dict[str, Parameter | Fixed]:
        """Its parameters by field name, in the order in which they are drawn."""
        named = {k: getattr(self, k) for k in ("family", "peak", "final", "warmup")}
        return {
            k: replace(v, when=self.when)
            if isinstance(v, Float | Int | Choice)
            else Fixed(v, when=self.when)
            for k, v in named.items()
        }

    def build(self, values: Mapping[str, Any]) -> schedules.Schedule:
        """The schedule that the drawn fields stand for."""
        peak = values["peak"]
        shape = schedules.FAMILIES[values["family"]](peak, peak * values["final"])
        return schedules.warmed(shape, values["warmup"])


@dataclass(frozen=True)
class Constraint:
    """A rule between parameters: `holds(config)` must be true, or the trial is INFEASIBLE."""

    text: str
    holds: Callable[[Config], bool]


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
        known: dict[str, Parameter | Fixed] = {}
        for name, parameter in self._leaves():
            _check_when(name, parameter.when, known)
            known[name] = parameter

    def _leaves(self) -> list[tuple[str, Parameter | Fixed]]:
        leaves: list[tuple[str, Parameter | Fixed]] = []
        for name, entry in self.entries.items():
            if isinstance(entry, ScheduleSpace):
                leaves += [(f"{name}.{field}", p) for field, p in entry.fields().items()]
            else:
                leaves.append((name, entry))
        return leaves

    def parameters(self) -> dict[str, Parameter]:
        """The searched parameters by flat name, parents before children."""
        return {n: p for n, p in self._leaves() if not isinstance(p, Fixed)}

    def suggest(self, draw: Callable[[str, Parameter], Any]) -> Params:
        """A point: `draw` is asked for each parameter whose condition holds, in order."""
        values: dict[str, Any] = {}
        point: dict[str, Any] = {}
        for name, parameter in self._leaves():
            if not _active(parameter.when, values):
                continue
            if isinstance(parameter, Fixed):
                values[name] = parameter.value
            else:
                values[name] = point[name] = draw(name, parameter)
        return point

    def config(self, params: Params) -> dict[str, Any]:
        """The configuration that a point stands for: fixed values added, schedules built."""
        values: dict[str, Any] = {}
        for name, parameter in self._leaves():
            if _active(parameter.when, values):
                values[name] = parameter.value if isinstance(parameter, Fixed) else params[name]
        config: dict[str, Any] = {}
        for name, entry in self.entries.items():
            if not isinstance(entry, ScheduleSpace):
                if name in values:
                    config[name] = values[name]
            elif f"{name}.peak" in values:
                config[name] = entry.build({f: values[f"{name}.{f}"] for f in entry.fields()})
        return config

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
                raise ValueError(f"{name} is missing: it must be {_allowed(parameter)}")
            value = params[name]
            if parameter.check(value):
                raise ValueError(f"{name} must be {parameter.check(value)} but got {value!r}")
            return value

        point = self.suggest(given)
        for name in params:
            if name not in point:
                when = parameters[name].when
                raise ValueError(f"{name} is given but exists only when {_say(when)}")
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
        defaults = {n: e.value for n, e in self.entries.items() if isinstance(e, Fixed)}
        return {**defaults, **{k: self._ready(k, v) for k, v in given.items()}}, None

    def _ready(self, name: str, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_schedule = isinstance(self.entries[name], ScheduleSpace)
        return schedules.as_schedule(value) if is_schedule and is_number else value

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
        return {n: p.value for n, p in self._leaves() if isinstance(p, Fixed)}


def unknown(what: str, name: object, allowed: Iterable[str]) -> str:
    """One line for a mistyped name: what was given, the nearest right name, what is allowed."""
    names = sorted(set(allowed))
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}{hint} (allowed: {', '.join(names)})"


def _check_range(kind: str, low: float, high: float, log: bool) -> None:
    for name, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{kind} {name} must be a number but got {value!r}")
        if not math.isfinite(value):
            raise ValueError(f"{kind} {name} must be finite but got {value!r}")
    if low > high:
        raise ValueError(f"{kind}({low!r}, {high!r}) is an empty range: low is above high")
    if log and low <= 0:
        raise ValueError(f"{kind}({low!r}, {high!r}, log=True) needs low above 0")


def _check_when(name: str, when: When | None, known: Mapping[str, Parameter | Fixed]) -> None:
    for parent, wanted in (when or {}).items():
        if parent not in known:
            raise ValueError(
                f"{name}: when: {unknown('parameter declared before it', parent, known)}"
            )
        parameter = known[parent]
        if isinstance(parameter, Fixed):
            continue
        for value in _values(wanted):
            if parameter.check(value):
                raise ValueError(f"{name}: when: {parent} can never be {value!r}")


def _active(when: When | None, values: Mapping[str, Any]) -> bool:
    return all(k in values and values[k] in _values(v) for k, v in (when or {}).items())


def _values(wanted: Any) -> tuple[Any, ...]:
    return tuple(wanted) if isinstance(wanted, list | tuple | set | frozenset) else (wanted,)


def _say(when: When | None) -> str:
    return " and ".join(
        f"{k} is {' or '.join(map(repr, _values(v)))}" for k, v in (when or {}).items()
    )


def _allowed(parameter: Parameter) -> str:
    if isinstance(parameter, Choice):
        return parameter.check(object())
    return f"a number from {parameter.low:g} to {parameter.high:g}"


def _bounds(value: Float | Int | float) -> tuple[float, float]:
    return (value.low, value.high) if isinstance(value, Float | Int) else (value, value)


def _is_power(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0
