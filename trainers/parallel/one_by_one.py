"""The gradients of a step pass by pass, with the squared norm of each pass's own gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trainers.data.stream import Batch
from trainers.parallel.protocol import Forward, Loss, Parallel
from trainers.parallel.ranks import average


class Squares(NamedTuple):
    """Squared norms of a step's gradients, in float64 on the device.

    Args:
        parts: the sum of b_i |g_i|^2 over the passes of all ranks, of b_i items each.
        whole: |g|^2 of the mean over all items.
        items: of all passes.
        passes: their number, of all ranks.
    """

    parts: Tensor
    whole: Tensor
    items: Tensor
    passes: Tensor


def gradients(parallel: Parallel, parts: Sequence[Batch], loss: Loss, forward: Forward) -> Squares:
    """As `Parallel.gradients` of whole copies, with the passes' norms; collective.

    Args:
        loss: the gradients of the parts' losses add up to this batch's mean, over the ranks.
    """
    weights, ranks = [*parallel.network.parameters()], parallel.data
    own = torch.zeros(3, dtype=torch.float64, device=ranks.device)
    sums: list[Tensor | None] = [None] * len(weights)
    for part in parts:
        parallel.alone([part], loss)
        items = len(part[0])
        own[0] += square(weights) / items
        own[1] += items
        own[2] += 1
        sums = _added(sums, weights)
    for weight, total in zip(weights, sums, strict=True):
        weight.grad = total
    with forward.waiting():
        average([total for total in sums if total is not None], ranks)
        ranks.sum(own)
    by_items, items_of_all, passes = own  # a pass has added b_i g_i times ranks over all items
    found = by_items * (items_of_all / ranks.size) ** 2
    return Squares(found, square(weights), items_of_all, passes)


@torch.no_grad()
def square(weights: Sequence[Tensor]) -> Tensor:
    """The squared norm of the gradient."""
    found = [weight.grad for weight in weights if weight.grad is not None]
    return torch.stack(torch._foreach_norm(found)).double().square().sum()


@torch.no_grad()
def _added(sums: Sequence[Tensor | None], weights: Sequence[Tensor]) -> list[Tensor | None]:
    """The sums with the last pass's gradients, which the weights then have no more."""
    found: list[Tensor | None] = []
    for weight, total in zip(weights, sums, strict=True):
        own, weight.grad = weight.grad, None
        found.append(own if total is None else total if own is None else total.add_(own))
    return found
