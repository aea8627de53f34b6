"""The largest numbers of a gradient, and how many of them a step sends."""

from __future__ import annotations

import math

from torch import Tensor

_MOST = 0.25
"""The share that is sent in the first step of a warm-up."""


def share(ratio: float, step: int, warmup: int) -> float:
    """The share of a step, from 0: it falls exponentially from a quarter to `ratio`.

    >>> [round(share(0.01, step, 2), 2) for step in range(4)]
    [0.25, 0.05, 0.01, 0.01]
    """
    if step >= warmup or ratio >= _MOST:
        return ratio
    return _MOST * float((ratio / _MOST) ** (step / warmup))


def count(elements: int, share: float) -> int:
    """How many numbers are sent of so many, one at least.

    >>> count(1000, 0.01), count(10, 0.01)
    (10, 1)
    """
    return min(max(1, math.ceil(share * elements)), elements)


def taken(velocity: Tensor, number: int, momentum: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The largest numbers of v by their amount, and their places; v and u are 0 there then.

    >>> import torch
    >>> v = torch.tensor([1.0, -3.0, 2.0])
    >>> taken(v, 1), v
    ((tensor([-3.]), tensor([1])), tensor([1., 0., 2.]))
    """
    flat = velocity.view(-1)
    places = flat.abs().topk(number, sorted=False).indices
    values = flat[places]
    for kept in (velocity, momentum):
        if kept is not None:
            kept.view(-1)[places] = 0.0
    return values, places
