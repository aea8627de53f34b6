"""Which weights or channels are the smallest, and how many of them go."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_EXACT = 1e-9  # of a product that is a whole number but for its rounding


def kept_of(scores: Mapping[str, Tensor], sparsity: float, scope: str) -> dict[str, Tensor]:
    """What stays of each layer, as bools: all but the smallest scores, and at least one.

    Args:
        scores: of each layer's weights or channels, one dimension.
        sparsity: the share that goes.
        scope: "layer", of each one as much, or "global", the smallest of all.
    """
    if scope == "layer":
        return {name: _largest(score, sparsity) for name, score in scores.items()}
    least = {name: _largest(score, 1.0) for name, score in scores.items()}  # of each layer one
    every = torch.cat([s.masked_fill(least[n], torch.inf) for n, s in scores.items()])
    sizes = [len(score) for score in scores.values()]
    kept = torch.split(_largest(every, sparsity, len(sizes)), sizes)
    return dict(zip(scores, kept, strict=True))


def _largest(score: Tensor, sparsity: float, least: int = 1) -> Tensor:
    """Where the scores are largest: all but int(n * sparsity) of n, and at least so many."""
    count = max(len(score) - removed(len(score), sparsity), least)
    mask = torch.zeros_like(score, dtype=torch.bool)
    mask[torch.topk(score, count).indices] = True
    return mask


def removed(count: int, sparsity: float) -> int:
    """How many of `count` weights or channels go.

    >>> removed(10, 0.9), removed(10, 0.7), removed(3, 0.5)
    (9, 7, 1)
    """
    return int(count * sparsity + _EXACT)
