"""The parameters of a search space: their values and conditions."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from random import Random
from typing import Any

from autotune.errors import checked, shown
from autotune.trial.checks import is_finite, is_whole

When = Mapping[str, Any]
LARGEST = sys.float_info.max / 4  # so that differences of values stay finite


@dataclass(frozen=True)
class Float:
    """A real number in [low, high], both included; `log` searches its logarithm.

    `when={"optimizer": ("lars", "lamb")}` makes it exist only if the named parameter, declared
    before it, has (one of) the given value(s).

    `effective="momentum"` searches value / (1 - momentum) instead, under the flat name
    `NAME.effective`: for a learning rate, the long-run effect of a step. The range is that of the
    effective value; the configuration gets the value itself.
    """

    low: float
    high: float
    _: KW_ONLY
    log: bool = False
    effective: str | None = None
    when: When | None = None

    @checked
    def __post_init__(self) -> None:
        check_range("Float", self.low, self.high, self.log)
        if self.effective is not None and not isinstance(self.effective, str):
            raise ValueError(f"Float effective must be a name but got {shown(self.effective)}")
        check_when("Float", self.when)

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

    @checked
    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            value = getattr(self, name)
            if not is_whole(value):
                raise ValueError(f"Int {name} must be a whole number but got {shown(value)}")
        check_range("Int", self.low, self.high, self.log)
        if self.step < 1 or (self.log and self.step != 1):
            raise ValueError(f"Int step must be >= 1, and 1 when log, but got {self.step!r}")
        if self.power_of_two and (not _is_power(self.low) or not _is_power(self.high)):
            raise ValueError(
                f"Int({self.low}, {self.high}, power_of_two=True): both ends must be powers of two"
            )
        check_when("Int", self.when)

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

    options: Sequence[Any]
    _: KW_ONLY
    when: When | None = None

    @checked
    def __post_init__(self) -> None:
        if isinstance(self.options, str) or not isinstance(self.options, Iterable):
            raise ValueError(f"Choice needs a list of options but got {self.options!r}")
        object.__setattr__(self, "options", tuple(self.options))
        if not self.options:
            raise ValueError("Choice needs at least one option but got none")
        for option in self.options:
            if option is not None and not isinstance(option, str | int | float):
                raise ValueError(
                    f"Choice options must be strings, numbers, booleans or None but got {option!r}"
                )
            if isinstance(option, float) and not math.isfinite(option):
                raise ValueError(f"Choice options must be finite but got {option!r}")
            if isinstance(option, int) and not isinstance(option, bool) and not is_whole(option):
                raise ValueError(f"Choice options must be numbers but got {shown(option)}")
        if len(set(self.options)) < len(self.options):  # 1, 1.0 and True are equal
            raise ValueError(f"Choice options must differ but got {self.options!r}")
        check_when("Choice", self.when)

    def check(self, value: Any) -> str:
        return "" if value in self.options else f"one of {', '.join(map(repr, self.options))}"


@dataclass(frozen=True)
class Fixed:
    """A value of the configuration that is not searched."""

    value: Any
    _: KW_ONLY
    when: When | None = None

    @checked
    def __post_init__(self) -> None:
        check_when("Fixed", self.when)


Parameter = Float | Int | Choice
Leaf = tuple[str, Parameter | Fixed]
"""A parameter by its flat name, as a point has it."""


def instead_of(value: Any) -> str:
    """The parameter to write in place of a distribution of Optuna; empty for anything else."""
    kind = type(value)
    name = kind.__name__.removesuffix("Distribution")
    if kind.__module__ != "optuna.distributions" or name not in ("Float", "Int", "Categorical"):
        return ""
    if name == "Categorical":
        return f"at.Choice({list(value.choices)!r})"
    log = ", log=True" if value.log else ""
    step = f", step={value.step}" if name == "Int" and value.step != 1 else ""
    return f"at.{name}({value.low!r}, {value.high!r}{log}{step})"


def check_range(kind: str, low: float, high: float, log: bool) -> None:
    for name, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{kind} {name} must be a number but got {shown(value)}")
        if not is_finite(value):
            raise ValueError(f"{kind} {name} must be finite but got {shown(value)}")
        if abs(value) > LARGEST:
            raise ValueError(f"{kind} {name} must be at most {LARGEST:g} but got {value!r}")
    if low > high:
        raise ValueError(f"{kind}({low!r}, {high!r}) is an empty range: low is above high")
    if log and low <= 0:
        raise ValueError(f"{kind}({low!r}, {high!r}, log=True) needs low above 0")


def check_when(kind: str, when: Any) -> None:
    """Raise a ValueError unless it is a condition: names, each with at least one value."""
    if when is None:
        return
    if not isinstance(when, Mapping) or not all(isinstance(name, str) for name in when):
        example = "{'optimizer': 'lars'}"
        raise ValueError(f"{kind} when must be a dict like {example} but got {shown(when)}")
    for name, wanted in when.items():
        if not wanted_values(wanted):
            raise ValueError(f"{kind} when: {name} must have a value but got {shown(wanted)}")


def bounds(value: Float | Int | float) -> tuple[float, float]:
    """The range of a parameter, or of a fixed number."""
    return (value.low, value.high) if isinstance(value, Float | Int) else (value, value)


def options(value: Int | Choice | Any) -> tuple[Any, ...]:
    """The values of a whole number or choice, in order; of anything else that value alone."""
    if isinstance(value, Choice):
        return tuple(value.options)
    if isinstance(value, Int):
        if not value.power_of_two:
            return tuple(range(value.low, value.high + 1, value.step))
        powers = (1 << k for k in range(value.low.bit_length() - 1, value.high.bit_length()))
        return tuple(v for v in powers if (v - value.low) % value.step == 0)
    return (value,)


def drawn(parameter: Parameter, random: Random) -> Any:
    """A random value: uniform over the options, the range, or its logarithm."""
    if isinstance(parameter, Choice):
        return random.choice(parameter.options)
    if isinstance(parameter, Int) and parameter.power_of_two:
        return 2 ** random.randint(
            round(math.log2(parameter.low)), round(math.log2(parameter.high))
        )
    if isinstance(parameter, Int) and not parameter.log:
        return random.randrange(parameter.low, parameter.high + 1, parameter.step)
    if isinstance(parameter, Int):
        low, high = math.log(parameter.low - 0.5), math.log(parameter.high + 0.5)
        return min(max(round(math.exp(random.uniform(low, high))), parameter.low), parameter.high)
    if parameter.log:
        value = math.exp(random.uniform(math.log(parameter.low), math.log(parameter.high)))
    else:
        value = random.uniform(parameter.low, parameter.high)
    return min(max(value, parameter.low), parameter.high)


def active(when: When | None, values: Mapping[str, Any]) -> bool:
    """Whether the condition holds for the values drawn so far."""
    return all(k in values and values[k] in wanted_values(v) for k, v in (when or {}).items())


def wanted_values(wanted: Any) -> tuple[Any, ...]:
    """The values in a condition for one parent."""
    return tuple(wanted) if isinstance(wanted, list | tuple | set | frozenset) else (wanted,)


def is_real(value: Any) -> bool:
    """Whether it is a number but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def say_when(when: When | None) -> str:
    """A condition as text.

    >>> say_when({"optimizer": ("lars", "lamb")})
    "optimizer is 'lars' or 'lamb'"
    """
    return " and ".join(
        f"{k} is {' or '.join(map(repr, wanted_values(v)))}" for k, v in (when or {}).items()
    )


def allowed(parameter: Parameter) -> str:
    """The allowed values of a parameter as text."""
    if isinstance(parameter, Choice):
        return parameter.check(object())
    return f"a number from {parameter.low:g} to {parameter.high:g}"


def _is_power(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0
