"""Ranks of a process group: the caller's, torchrun's, or this process alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

# Its functions take the group that exists when it is imported as their default, for good: imported
# later (by DistributedDataParallel), it would keep the group that is opened here alive beyond its
# end, and a thread of gloo that frees a tensor while Python shuts down aborts the process.
import torch.distributed.nn.functional
from torch import Tensor, nn


@dataclass(frozen=True)
class Ranks:
    """This process among the `size` processes that train together, and its device."""

    rank: int
    size: int
    device: torch.device

    def share(self, start: int, stop: int) -> tuple[int, int]:
        """This rank's part of the range [start, stop); parts differ in length by at most one.

        >>> [Ranks(r, 3, torch.device("cpu")).share(10, 15) for r in range(3)]
        [(10, 11), (11, 13), (13, 15)]
        """
        count = stop - start
        return start + self.rank * count // self.size, start + (self.rank + 1) * count // self.size

    def sum(self, values: Tensor) -> Tensor:
        """`values` summed over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The ranks of the process group that exists, or of one that `torchrun`'s variables describe.

    A group that is opened here is closed at the end; one that was there stays.
    """
    device = _device()
    opened = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if opened:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        if dist.is_initialized():
            yield Ranks(dist.get_rank(), dist.get_world_size(), device)
        else:
            yield Ranks(0, 1, device)
    finally:
        if opened:
            gc.collect()  # a model in a cycle of references would keep the group as well
            dist.destroy_process_group()


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device(
        "cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    )
    torch.cuda.set_device(device)
    return device


@contextmanager
def averaged_buffers(model: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Inside, the running statistics are their means over the ranks; after it, as before.

    Every rank keeps its own statistics of batch normalisation while it trains, which saves a
    broadcast per step. They are linear in what was seen, so their mean is the statistic that
    averaging at every step would give. They are put back so that evaluating leaves no trace.
    """
    own = [b for b in model.buffers() if b.is_floating_point()] if ranks.size > 1 else []
    if not own:
        yield
        return
    kept = torch.cat([b.detach().flatten() for b in own])
    means = ranks.sum(kept.clone()) / ranks.size
    try:
        _fill(own, means)
        yield
    finally:
        _fill(own, kept)


def _fill(buffers: list[Tensor], flat: Tensor) -> None:
    with torch.no_grad():
        for buffer, part in zip(
            buffers, torch.split(flat, [b.numel() for b in buffers]), strict=True
        ):
            buffer.copy_(part.view_as(buffer))
