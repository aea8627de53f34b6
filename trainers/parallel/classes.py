"""A softmax over many classes, whose weights are divided over the ranks.

Every rank has some rows of the classes' matrix, with their gradients and the optimizer's state of
them. It gets the features of all ranks' samples, which are small, and computes their scores for
its classes; the softmax needs a maximum and two sums a sample over the ranks. Nothing of the matrix
is ever sent. An et al. 2021, arXiv 2010.05222 (Partial FC); margins: `trainers.models.margins`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainers.data.stream import NO_LABEL
from trainers.models.margins import USUAL
from trainers.parallel.context import gathered
from trainers.parallel.ranks import Ranks
from trainers.readers import Number, one_of, optional, scheduled
from trainers.technique import Knob, when

_MARGIN = when("margin", "arcface", "cosface")
_SHARE = Number(0.0, 1.0, open_low=True, closed_high=True)
KNOBS: Mapping[str, Knob] = {
    "margin": Knob("arcface", one_of(USUAL), "statistical", memory=False),
    "margin_size": Knob(None, optional(Number(0.0, 1.5)), "statistical", _MARGIN, memory=False),
    "margin_scale": Knob(64.0, Number(0.0, open_low=True), "statistical", memory=False),
    "class_sample_rate": Knob(1.0, scheduled(_SHARE), "both"),
}


def check(count: int, size: int) -> None:
    """Raise a ValueError, one line, where a rank would have none of so many classes."""
    first, stop = rows_of(count, size - 1, size)
    if first >= stop:
        raise ValueError(f"{count} classes give some of {size} ranks none: use fewer ranks")


def rows_of(count: int, rank: int, size: int) -> tuple[int, int]:
    """The classes of a rank; the last ranks may have fewer, as where torch shards a tensor.

    >>> [rows_of(5, rank, 2) for rank in range(2)]
    [(0, 3), (3, 5)]
    """
    each = -(-count // size)
    return min(rank * each, count), min((rank + 1) * each, count)


class _CrossEntropy(torch.autograd.Function):
    """Of all ranks' samples, with the scores of this rank's classes; the same on every rank."""

    @staticmethod
    def forward(context: Any, scores: Tensor, targets: Tensor, ranks: Ranks) -> Any:
        most = _reduced(scores.amax(1), ranks, dist.ReduceOp.MAX)
        own = scores.gather(1, targets.clamp(min=0)[:, None])[:, 0] - most
        shares = (scores - most[:, None]).exp_()
        sums = torch.stack((shares.sum(1), torch.where(targets < 0, 0.0, own)))
        total, aimed = _reduced(sums, ranks, dist.ReduceOp.SUM)
        context.ranks = ranks
        context.save_for_backward(shares.div_(total[:, None]), targets)
        right = aimed >= 0
        context.mark_non_differentiable(right)
        return total.log() - aimed, right

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None, None]:
        """A rank differentiates the losses of its own samples, whose sum is that of all ranks."""
        shares, targets = context.saved_tensors
        gradient = _reduced(gradient.contiguous().clone(), context.ranks, dist.ReduceOp.SUM)
        found = shares * gradient[:, None]
        less = torch.where(targets < 0, 0.0, -gradient)
        found.scatter_add_(1, targets.clamp(min=0)[:, None], less[:, None])
        return found, None, None


def cross_entropy(scores: Tensor, targets: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """The loss of each of all ranks' samples, in nats, and whether no class scores higher than its.

    Args:
        scores: float32 (samples, rows) of this rank's classes.
        targets: (samples,), the column of a sample's own class; -1 on the other ranks. The loss of
            a sample that has a class on no rank means nothing.
    """
    losses, right = _CrossEntropy.apply(scores, targets, ranks)  # type: ignore[no-untyped-call]
    return losses, right


def _reduced(values: Tensor, ranks: Ranks, operation: Any) -> Tensor:
    if ranks.size > 1:
        dist.all_reduce(values, operation, group=ranks.group)
    return values


def everyone(features: Tensor, labels: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """The samples of all ranks, as many of each rank, some of which have no label.

    Args:
        features: (samples, width); gradients come back to them.
        labels: int64 (samples,); ranks may have different numbers of them.

    Returns:
        (ranks x most, width) and (ranks x most,), where `most` are the samples of a rank.
    """
    if ranks.size == 1:
        return features, labels
    through_gloo = "gloo" in dist.get_backend_config()  # then no device has to be waited for
    count = torch.tensor(len(labels), device="cpu" if through_gloo else ranks.device)
    missing = int(_reduced(count, ranks, dist.ReduceOp.MAX)) - len(labels)
    labels = F.pad(labels, (0, missing), value=NO_LABEL)
    found = [torch.empty_like(labels) for _ in range(ranks.size)]
    dist.all_gather(found, labels, group=ranks.group)
    return gathered(F.pad(features, (0, 0, 0, missing)), ranks).flatten(0, 1), torch.cat(found)
