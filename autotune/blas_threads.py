"""How many threads linear algebra has in the driver's process.

The driver's matrices are small, and trainers have the cores: there the threads of a BLAS library
wait for one another many times longer than they compute (`benchmarks/decisions.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

LOCK = Lock()
"""Held where the number is changed for a while, and read to be restored: it is the process's."""


def on_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """The function, during which BLAS libraries have one thread.

    They keep as many as they have where another thread of this process has limited them.
    """

    @wraps(function)
    def limited(*args: P.args, **named: P.kwargs) -> R:
        if not LOCK.acquire(blocking=False):
            return function(*args, **named)
        try:
            with _libraries().limit(limits=1):
                return function(*args, **named)
        finally:
            LOCK.release()

    return limited


@cache
def _libraries() -> Any:
    import scipy.linalg  # noqa: F401 - it brings a library of its own, beside NumPy's
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
