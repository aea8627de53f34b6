"""Values of annotated dataclasses from JSON types, each field checked by its annotation."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from autotune.errors import shown, unknown
from autotune.trial.checks import MOST, is_finite, is_whole

Read = Callable[[Any], Any]
_LARGEST = 1e300  # so that sums of seconds, and microseconds, stay finite


@functools.cache
def reader(kind: Any, older: bool = False) -> Read:
    """The function that makes a value of the type `kind` of JSON types.

    Known are dataclasses of known types, `Any`, `str`, `bool`, `int` (of at most 63 bits), `float`
    (finite), enumerations, `X | None`, tuples, sequences and mappings; the values of a
    `Mapping[str, float]` may also be infinite or NaN, which are text in JSON.

    >>> reader(tuple[tuple[int, str], ...])([[1, "a"]])
    ((1, 'a'),)

    With `older` the values may be such as earlier versions wrote, which checked less: a whole
    number may be a float or have more bits (it is cut to 63), a number may be infinite or NaN, and
    the ranges of dataclasses do not hold.

    The function raises ValueError: what must be there, and what is.
    """
    plain = _OLDER if older else _PLAIN
    if kind in plain:
        return plain[kind]
    if is_dataclass(kind):
        return _dataclass(kind, older)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        (one,) = (arg for arg in inner if arg is not types.NoneType)
        read = reader(one, older)
        return lambda value: None if value is None else read(value)
    if origin is tuple and inner[-1] is not Ellipsis:
        return _pair(tuple(reader(arg, older) for arg in inner))
    if origin in (tuple, Sequence):
        return _sequence(tuple if origin is tuple else list, reader(inner[0], older))
    if origin is Mapping:
        return _mapping(float if inner[1] is float else reader(inner[1], older))
    assert issubclass(kind, Enum), f"no reader for {kind}"
    return _enumeration(kind)


def _checked(text: str, allows: Callable[[Any], bool]) -> Read:
    def read(value: Any) -> Any:
        if not allows(value):
            raise _wrong(text, value)
        return value

    return read


def _number(value: Any) -> float:
    if not is_finite(value):
        raise _wrong("a finite number", value)
    if abs(value) > _LARGEST:
        raise _wrong(f"at most {_LARGEST:g}", value)
    return float(value)


def _older_whole(value: Any) -> int:
    made = int(value) if isinstance(value, float) and value.is_integer() else value
    if not isinstance(made, int) or isinstance(made, bool):
        raise _wrong("a whole number", value)
    return int(max(-MOST, min(made, MOST)))  # no more than a database or a tensor can hold


def _older_number(value: Any) -> float:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong("a number", value)
    return float(max(-_LARGEST, min(value, _LARGEST)))


def _wrong(text: str, value: Any) -> ValueError:
    return ValueError(f"must be {text} but got {shown(value)}")


_PLAIN: Mapping[Any, Read] = {
    Any: lambda value: value,
    str: _checked("text", lambda value: isinstance(value, str)),
    bool: _checked("true or false", lambda value: isinstance(value, bool)),
    int: _checked("a whole number", is_whole),
    float: _number,
}
_OLDER: Mapping[Any, Read] = {**_PLAIN, int: _older_whole, float: _older_number}


def _dataclass(kind: Any, older: bool) -> Read:
    hints = get_type_hints(kind)
    read = {field.name: reader(hints[field.name], older) for field in fields(kind)}
    needed = [
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]

    def made(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        given = {}
        for name, own in value.items():
            if name not in read:
                raise ValueError(unknown("field", name, read))
            try:
                given[name] = read[name](own)
            except (ValueError, TypeError, OverflowError) as error:
                raise ValueError(f"{name} {error}") from None
        for name in needed:
            if name not in given:
                raise ValueError(f"{name} is missing")
        try:
            return kind(**given)
        except ValueError:
            if not older:
                raise
            return _unchecked(kind, given)

    return made


def _unchecked(kind: Any, given: Mapping[str, Any]) -> Any:
    """The dataclass of these values, which it would refuse now."""
    made = object.__new__(kind)
    for field in fields(kind):
        object.__setattr__(made, field.name, given.get(field.name, field.default))
    return made


def _pair(each: tuple[Read, ...]) -> Read:
    def made(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(each):
            raise _wrong(f"a list of {len(each)}", value)
        return tuple(read(own) for read, own in zip(each, value, strict=True))

    return made


def _sequence(kind: Callable[[Any], Any], each: Read) -> Read:
    def made(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _wrong("a list", value)
        return kind(each(own) for own in value)

    return made


def _mapping(each: Read) -> Read:
    def made(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong("an object", value)
        return {name: each(own) for name, own in value.items()}

    return made


def _enumeration(kind: type[Enum]) -> Read:
    def made(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            allowed = ", ".join(str(member.value) for member in kind)
            raise _wrong(f"one of {allowed}", value) from None

    return made
