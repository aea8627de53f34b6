"""What a trainer says of itself, in attributes of its function, and how it is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def function_of(train: Callable[..., Any]) -> Callable[..., Any]:
    """The trainer's own function, which `functools.partial` may have wrapped.

    >>> function_of(partial(partial(print, 1), 2)) is print
    True
    """
    while isinstance(train, partial):
        train = train.func
    return train


def said(train: Callable[..., Any], name: str, default: Any = None) -> Any:
    """The attribute of the trainer or of what `functools.partial` has wrapped, or the default."""
    while not hasattr(train, name) and isinstance(train, partial):
        train = train.func
    return getattr(train, name, default)


def is_generator(train: Callable[..., Any]) -> bool:
    """Whether it is a generator function, or an object called as one, as far as can be seen."""
    function = function_of(train)
    call = getattr(type(function), "__call__", None)
    return inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(call)


def may_never_end(train: Callable[..., Any]) -> bool:
    """Whether it is a generator that does not say of itself that it `ends_by_itself`."""
    return is_generator(train) and not said(train, "ends_by_itself", False)
