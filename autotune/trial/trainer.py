"""What a trainer says of itself, in attributes of its function."""

from __future__ import annotations

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
