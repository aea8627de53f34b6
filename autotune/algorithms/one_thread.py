"""Linear algebra of the driver on one thread.

Its matrices are small, and trainers have the cores: there the threads of a BLAS library wait for
one another many times longer than they compute (`benchmarks/decisions.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def on_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """The function, during which BLAS libraries have one thread.

    Not where another thread of this process has limited them itself.
    """

    @wraps(function)
    def limited(*args: P.args, **named: P.kwargs) -> R:
        with _libraries().limit(limits=1):
            return function(*args, **named)

    return limited


@cache
def _libraries() -> Any:
    import scipy.linalg  # noqa: F401 - it brings a library of its own, beside NumPy's
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
