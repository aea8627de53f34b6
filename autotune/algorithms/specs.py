"""Specs: names with keyword arguments as on the command line, like `pbt(interval=2.5)`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from autotune.errors import UserError, canonical, unknown

Built = TypeVar("Built")


def is_path(text: str) -> bool:
    """Whether the text names a function of a file or module, as in `FILE:NAME`.

    >>> is_path("mine.py:turn"), is_path("/a (1)/mine.py:turn"), is_path("pbt(of='a:b')")
    (True, True, False)
    """
    return ":" in text and not text.endswith(")")


def canonical_spec(text: str, names: Iterable[str]) -> str:
    """The spec with its name as `names` have it, if it is one of them in another case.

    >>> canonical_spec("Asha(reduction=2)", ["asha"]), canonical_spec("mine.py:Asha", ["asha"])
    ('asha(reduction=2)', 'mine.py:Asha')
    """
    name, bracket, arguments = text.partition("(")
    return f"{canonical(name.strip(), names)}{bracket}{arguments}"


def parse_spec(what: str, text: str, names: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """Parse a spec: one of `names` in any case, alone or called with keyword arguments.

    >>> parse_spec("pruner", "Asha(reduction=2)", ["asha"]), parse_spec("pruner", "asha", ["asha"])
    (('asha', {'reduction': 2}), ('asha', {}))

    Raises:
        UserError: neither such a name nor a call of one with literal values.
    """
    allowed = tuple(names)
    name, call = split_call(what, text, allowed)
    name = canonical(name, allowed)
    if name not in allowed:
        raise UserError(unknown(what, name, allowed))
    return name, keyword_arguments(what, call, text)


def split_call(what: str, text: str, names: Iterable[str]) -> tuple[str, ast.Call | None]:
    """The name in a spec, and its call; None for a name alone.

    Raises:
        UserError: neither a name nor a call; the message has the nearest of `names`.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):  # also characters that Python does not read
        raise UserError(unknown(what, text, names)) from None
    call = tree if isinstance(tree, ast.Call) else None
    return ast.unparse(tree if call is None else call.func), call


def keyword_arguments(what: str, call: ast.Call | None, text: str) -> dict[str, Any]:
    """The keyword arguments of a call; empty for None.

    Raises:
        UserError: there are positional arguments, or one is no literal.
    """
    if call is None:
        return {}
    names = [k.arg for k in call.keywords]
    if call.args or None in names:
        problem = "unknown argument '**', " if None in names else ""
        raise UserError(f"{what} {text!r}: {problem}give its arguments by keyword")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{what} {text!r}: {twice} is given twice")
    return {str(k.arg): _literal(what, text, k) for k in call.keywords}


def _literal(what: str, text: str, given: ast.keyword) -> Any:
    try:
        return ast.literal_eval(given.value)
    except (ValueError, TypeError):
        named = isinstance(given.value, ast.Name | ast.Attribute)
        name_given = ast.unparse(given.value) if named else None
        hint = ""
        if name_given is not None and name_given.capitalize() in ("True", "False", "None"):
            hint = f": {given.arg}={name_given.capitalize()}"
        elif name_given is not None:
            hint = f", and a text in quotes: {given.arg}={name_given!r}"
        raise UserError(f"{what} {text!r}: arguments must be plain values{hint}") from None


def build(
    what: str,
    text: str,
    call: tuple[str, dict[str, Any]],
    make: Callable[..., Built],
    *given: Any,
    **known: Any,
) -> Built:
    """Call `make` with the arguments of a parsed spec.

    Args:
        what: the kind of thing that is built, for messages.
        text: the spec as it was given, for messages.
        call: the name and the keyword arguments from `parse_spec`.
        given, known: further arguments of `make`; keyword arguments of the spec override `known`.

    Raises:
        UserError: `make` does not take an argument, or it is out of range.
    """
    check_arguments(what, text, call, make, len(given))
    _, arguments = call
    try:
        return make(*given, **{**known, **arguments})
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} {text!r}: {error}") from None


def check_arguments(
    what: str,
    text: str,
    call: tuple[str, dict[str, Any]],
    make: Callable[..., Any],
    given: int,
) -> None:
    """Check that `make`, whose first `given` arguments are others, takes those of a parsed spec.

    Raises:
        UserError: it does not take one, or wants a number there.
    """
    name, arguments = call
    parameters = inspect.signature(make).parameters
    accepted = [*parameters][given:]
    for key, value in arguments.items():
        if not accepted:
            raise UserError(f"{what} {name!r} takes no arguments, but got {text!r}")
        if key not in accepted:
            raise UserError(unknown(f"argument of {name}", key, accepted))
        if not _fits(parameters[key].annotation, value):
            raise UserError(f"{what} {text!r}: {key} must be a number but got {value!r}")


def _fits(annotation: Any, value: Any) -> bool:
    """Whether the value is a number, or None, where the annotation wants a float or that."""
    kind, _, other = inspect.formatannotation(annotation).strip("'").partition(" | ")
    if kind != "float" or (value is None and other == "None"):
        return True
    return isinstance(value, int | float) and not isinstance(value, bool)
