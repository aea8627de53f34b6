"""AdamW as the step of a farm's networks (Loshchilov, Hutter 2019, arXiv 1711.05101)."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from _networks import Layout, loss
from torch import Tensor
from torch.func import grad

VECTORS = 2  # of its state: both moments
_EPS = 1e-8


def adamw(
    shapes: Layout, flat: Tensor, moments: Tensor, batch: tuple[Tensor, ...], settings: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of one network: weights and moments after it; only matrices decay.

    The arguments are those of `_networks.stepped`; `moments` is the first, then the second.
    """
    rate, beta1, decay, _, acts, beta2, number = settings.unbind()
    slope = grad(partial(loss, shapes))(flat, *batch)
    before, squared = moments.chunk(2)
    mean = beta1 * before + (1 - beta1) * slope
    square = beta2 * squared + (1 - beta2) * slope**2
    spread = (square / (1 - beta2**number)).sqrt() + _EPS
    move = mean / (1 - beta1**number) / spread + decay * _matrices(shapes) * flat
    fresh = torch.cat([mean, square])
    return torch.where(acts > 0, flat - rate * move, flat), torch.where(acts > 0, fresh, moments)


@lru_cache
def _matrices(shapes: Layout) -> Tensor:
    """1 where a weight belongs to a matrix, 0 at biases."""
    parts = zip(shapes.shapes, shapes.sizes, strict=True)
    return torch.cat([torch.full((size,), float(len(shape) > 1)) for shape, size in parts])
