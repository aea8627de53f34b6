"""Which trials of a long study stand for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def thinned(order: Sequence[Any], most: int) -> list[int]:
    """The indices of at most `most` trials: the best ones, as many of the others, evenly spread.

    Args:
        order: a key of each trial, the least of the best one.

    >>> thinned([5, 1, 4, 2, 3, 0], 4)
    [0, 1, 3, 5]
    """
    count = len(order)
    if count <= most:
        return list(range(count))
    ranked = sorted(range(count), key=order.__getitem__)
    best, others = ranked[: most // 2], sorted(ranked[most // 2 :])
    left = most - len(best)
    return sorted([*best, *(others[i * len(others) // left] for i in range(left))])
