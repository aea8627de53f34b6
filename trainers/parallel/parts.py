"""A rank's batch in parts, one for each forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, distributed

from trainers.data.stream import NO_LABEL, Batch
from trainers.parallel.ranks import Ranks


def split(batch: Batch, most: int | None) -> list[Batch]:
    """Split the batch into parts of up to `most` items; None: one part."""
    x, y = batch
    if most is None or len(y) <= most:
        return [batch]
    return list(zip(torch.split(x, most), torch.split(y, most), strict=True))


def split_together(batch: Batch, samples: int, data: Ranks, most: int | None) -> list[Batch]:
    """Split the batch into as many parts as the rank with the largest batch has.

    A rank with fewer items than parts repeats its first item without a label.

    Args:
        samples: in the global batch.
        most: items of a part; None: as many as there are.
    """
    x, y = batch
    largest = -(-samples // (y[0].numel() * data.size))
    count = -(-largest // (most or largest))
    if len(y) >= count:
        return list(zip(x.tensor_split(count), y.tensor_split(count), strict=True))
    parts = list(zip(torch.split(x, 1), torch.split(y, 1), strict=True))
    return [*parts, *[_unlabelled(batch)] * (count - len(parts))]


def in_step(batches: Iterable[Batch], data: Ranks) -> Iterator[Batch]:
    """The batches of an evaluation, and unlabelled ones until all ranks have finished.

    Each is taken as it is needed: those of a large validation set do not fit into memory together.
    """
    last: Batch | None = None
    for last in batches:
        _on_any(True, data)
        yield last
    while _on_any(False, data):
        assert last is not None, "every rank has something to validate on"
        yield _unlabelled(last)


def _on_any(more: bool, data: Ranks) -> Tensor:
    """Whether any rank has one more; only a rank that has none needs to wait for the answer."""
    found = torch.tensor(int(more), device=data.device)
    if data.size > 1:
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=data.group)
    return found


def _unlabelled(batch: Batch) -> tuple[Tensor, Tensor]:
    x, y = batch
    return x[:1], torch.full_like(y[:1], NO_LABEL)
