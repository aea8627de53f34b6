"""Names with keyword arguments, as a command line has them: `pbt(interval=2.5)`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from autotune.errors import UserError, unknown

Made = TypeVar("Made")


def is_path(text: str) -> bool:
    """Whether the text names a function of a file or module, and calls nothing.

    >>> is_path("mine.py:turn"), is_path("/a (1)/mine.py:turn"), is_path("pbt(of='a:b')")
    (True, True, False)
    """
    return ":" in text and not text.endswith(")")


def parse_spec(what: str, text: str, names: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """The name and the keyword arguments in a text that calls one of `names`, or only names it.

    >>> parse_spec("pruner", "asha(reduction=2)", ["asha"]), parse_spec("pruner", "asha", ["asha"])
    (('asha', {'reduction': 2}), ('asha', {}))

    Raises:
        UserError: neither a name nor a call of one with plain values.
    """
    allowed = tuple(names)
    name, call = split_call(what, text, allowed)
    if name not in allowed:
        raise UserError(unknown(what, name, allowed))
    return name, keyword_arguments(what, call, text)


def split_call(what: str, text: str, names: Iterable[str]) -> tuple[str, ast.Call | None]:
    """The name in a text that calls something or only names it, and the call.

    Raises:
        UserError: it is neither; with the nearest of `names`.
    """
    try:
        found = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise UserError(unknown(what, text, names)) from None
    call = found if isinstance(found, ast.Call) else None
    return ast.unparse(found if call is None else call.func), call


def keyword_arguments(what: str, call: ast.Call | None, text: str) -> dict[str, Any]:
    """The keyword arguments of a call; none without one.

    Raises:
        UserError: there are others, or one is no plain value.
    """
    if call is None:
        return {}
    names = [k.arg for k in call.keywords]
    if call.args or None in names:
        said = "unknown argument '**', " if None in names else ""
        raise UserError(f"{what} {text!r}: {said}give its arguments by keyword")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{what} {text!r}: {twice} is given twice")
    return {str(k.arg): _plain(what, text, k) for k in call.keywords}


def _plain(what: str, text: str, given: ast.keyword) -> Any:
    try:
        return ast.literal_eval(given.value)
    except (ValueError, TypeError):
        word = given.value.id if isinstance(given.value, ast.Name) else None
        hint = ""
        if word is not None and word.capitalize() in ("True", "False", "None"):
            hint = f": {given.arg}={word.capitalize()}"
        elif word is not None:
            hint = f", and a text in quotes: {given.arg}={word!r}"
        raise UserError(f"{what} {text!r}: arguments must be plain values{hint}") from None


def build(
    what: str,
    text: str,
    call: tuple[str, dict[str, Any]],
    make: Callable[..., Made],
    *given: Any,
    **known: Any,
) -> Made:
    """What `make` gives for the `call` that was found in the text.

    Args:
        given, known: what else `make` takes; keyword arguments of the call go before `known`.

    Raises:
        UserError: an argument that it does not take, or that is out of range.
    """
    name, arguments = call
    accepted = [*inspect.signature(make).parameters][len(given) :]
    for key in arguments:
        if not accepted:
            raise UserError(f"{what} {name!r} takes no arguments, but got {text!r}")
        if key not in accepted:
            raise UserError(unknown(f"argument of {name}", key, accepted))
    try:
        return make(*given, **{**known, **arguments})
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} {text!r}: {error}") from None
