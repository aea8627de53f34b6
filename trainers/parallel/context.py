"""Sequences divided over the ranks: context parallel.

Every rank has one part of each sequence of a batch, and the activations of it only. Attention
gathers the keys and values of all parts, and hides those that the query does not see. The parts
need equally much work, since hidden keys are computed with as well. After Dubey et al. 2024,
arXiv 2407.21783, section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainers.models.attention import Sees, sees_of
from trainers.parallel.protocol import Loss, Parallel
from trainers.parallel.ranks import Ranks
from trainers.parallel.shared import Shared
from trainers.readers import whole as count
from trainers.technique import Knob

KNOBS: Mapping[str, Knob] = {"context_parallel_degree": Knob(1, count(1), "exact")}


class _Gathered(torch.autograd.Function):
    """The parts of all ranks, one after another in a new first dimension."""

    @staticmethod
    def forward(context: Any, part: Tensor, ranks: Ranks) -> Tensor:
        context.ranks = ranks
        found = [torch.empty_like(part) for _ in range(ranks.size)]
        dist.all_gather(found, part, group=ranks.group)
        return torch.stack(found)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        own = gradient.new_empty(gradient.shape[1:])
        parts = [part.contiguous() for part in gradient]
        dist.reduce_scatter(own, parts, group=context.ranks.group)
        return own, None


def gathered(part: Tensor, ranks: Ranks) -> Tensor:
    """The parts of all ranks, in a new first dimension; gradients go back to where the parts are.

    A gradient may come back with its memory in another order than its dimensions. Torch's own
    operation (`torch.distributed.nn.functional.all_gather`) scrambles it then on gloo, which sends
    the memory.
    """
    found: Tensor = _Gathered.apply(part.contiguous(), ranks)  # type: ignore[no-untyped-call]
    return found


class GatheredAttention:
    """Attention of the queries of a part to the keys and values of all parts.

    Args:
        place: this rank among those that have parts of the same sequences.
        sees: which keys a query sees, of all that are not later.
    """

    def __init__(self, place: Ranks, sees: Sees) -> None:
        self._place = place
        self._sees = sees

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        both = gathered(torch.stack((k, v)), self._place)
        keys, values = torch.cat([*both], dim=-2)
        length = q.shape[-2]
        query = torch.arange(length, device=q.device) + self._place.rank * length
        seen = self._sees(query[:, None], torch.arange(keys.shape[-2], device=q.device))
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)


def divide(model: Any, place: Ranks) -> None:
    """The model's input is from now on this rank's part of each sequence.

    Args:
        model: has layers with an attention, and takes another and a part (`divide_sequences`).
    """
    attention = GatheredAttention(place, sees_of(model.layers[0].attention))
    model.divide_sequences(place.rank, place.size, attention)


def in_context(inner: Parallel, data: Ranks, place: Ranks) -> Shared:
    """A model on ranks that have parts of the same sequences.

    Args:
        inner: the model among all ranks, over which it averages gradients.
        data: the ranks that have different sequences.
        place: this rank among those that have parts of the same ones.
    """

    def mine(tokens: Tensor) -> Tensor:
        return tokens.chunk(place.size, dim=1)[place.rank]

    def summed(loss: Loss) -> Loss:
        return lambda out, y: loss(out, y) * place.size  # a sum over the parts, not their mean

    return Shared(inner, data, counts=True, multiple=place.size, mine=mine, loss=summed)
