"""The arguments of a recipe: text that was typed, read by the annotations of its function."""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from autotune.errors import UserError, canonical, shown, unknown

_TRUTHS = {"true": True, "yes": True, "on": True, "1": True}
_TRUTHS |= {"false": False, "no": False, "off": False, "0": False}
_NONE = "none"  # the text for None where that is allowed
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def pair(text: str) -> tuple[str, str]:
    """The name and the text of an argument that was typed as `name=text`.

    >>> pair("data=a=b")
    ('data', 'a=b')

    Raises:
        ValueError: it is written differently.
    """
    name, found, value = text.partition("=")
    if not found or not name.isidentifier() or not value.strip():
        raise ValueError(f"must be like data=DIR but got {shown(text)}")
    return name, value


def read(recipe: str, function: Callable[..., Any], given: Mapping[str, str]) -> dict[str, Any]:
    """The values of a recipe's arguments.

    Known annotations are `str`, `int`, `float`, `bool`, `Path` (made absolute), `Literal` (in any
    case), and these with `| None`. An argument without an annotation is read as its default is.

    Args:
        recipe: its name, for messages.
        given: the arguments by name, as text.

    Raises:
        UserError: an argument that it does not take (with the nearest name), one that it needs, or
            a text that is none of the kind; in one line.
    """
    taken = _parameters(recipe, function)
    if given and not taken:
        names = ", ".join(given)
        raise UserError(f"recipe {recipe!r} takes no arguments but got {names} (--with)")
    for name in given:
        if name not in taken:
            raise UserError(f"recipe {recipe!r}: {unknown('argument (--with)', name, taken)}")
    for name, parameter in taken.items():
        if parameter.default is parameter.empty and name not in given:
            raise UserError(f"recipe {recipe!r} needs --with {name}={_example(parameter)}")
    return {name: _value(recipe, taken[name], text) for name, text in given.items()}


def relative_paths(values: Mapping[str, Any], given: Mapping[str, str]) -> list[str]:
    """The names of the arguments that were given as relative paths; `values` is what was read."""
    paths = [name for name, value in values.items() if isinstance(value, Path)]
    return [name for name in paths if not Path(given[name]).expanduser().is_absolute()]


def stored(given: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, str]:
    """The arguments as text that means the same in any folder, and names as they are known."""
    return {n: str(values[n]) if isinstance(values[n], Path | str) else t for n, t in given.items()}


def _parameters(recipe: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, SyntaxError, AttributeError) as error:
        raise UserError(f"recipe {recipe!r}: its annotations cannot be read: {error}") from None
    except (ValueError, TypeError):  # it has no signature
        return {}
    return {p.name: p for p in signature.parameters.values() if p.kind in _BY_NAME}


def _kind(parameter: inspect.Parameter) -> Any:
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    if parameter.default is parameter.empty or parameter.default is None:
        return str
    return type(parameter.default)


def _value(recipe: str, parameter: inspect.Parameter, text: str) -> Any:
    kind, name = _kind(parameter), parameter.name
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    kinds = [member for member in members if member is not types.NoneType]
    if len(kinds) < len(members) and text.lower() == _NONE:
        return None
    says = []
    for one in kinds:
        try:
            return _read(one, name, text)
        except ValueError as error:
            says.append(str(error))
    raise UserError(f"recipe {recipe!r}: {says[-1]}")


def _read(kind: Any, name: str, text: str) -> Any:
    """The value of a text; a ValueError says what the text must be."""
    if get_origin(kind) is Literal:
        allowed = {str(value): value for value in get_args(kind)}
        known = canonical(text, allowed)
        if known not in allowed:
            raise ValueError(unknown(name, text, allowed))
        return allowed[known]
    plain = _PLAIN.get(kind)
    if plain is None:
        raise ValueError(f"{name} is annotated with {shown(kind)}, which no text can be read as")
    what, reader = plain
    value = reader(text)
    if value is None:
        raise ValueError(f"{name} must be {what} but got {shown(text)}")
    return value


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _path(text: str) -> Path | None:
    try:
        return Path(text).expanduser().absolute()
    except (ValueError, RuntimeError):
        return None


_PLAIN: Mapping[Any, tuple[str, Callable[[str], Any]]] = {
    str: ("text", str),
    int: ("a whole number", _whole),
    float: ("a number", _number),
    bool: ("true or false", lambda text: _TRUTHS.get(text.lower())),
    Path: ("a path", _path),
    Any: ("text", str),
    object: ("text", str),
}


def _example(parameter: inspect.Parameter) -> str:
    """What to type for an argument."""
    kind = _kind(parameter)
    if get_origin(kind) is Literal:
        return "|".join(str(value) for value in get_args(kind))
    names = {int: "NUMBER", float: "NUMBER", bool: "true", Path: "PATH"}
    return names.get(kind, "TEXT")
