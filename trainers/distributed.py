"""The ranks of the caller's or torchrun's process group, or a single rank."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

# Its functions bind the process group that exists at import time as their default. If it is
# imported later (by DistributedDataParallel), it keeps the group that is opened here alive after
# its end, and a thread of gloo that frees a tensor while Python shuts down aborts the process.
import torch.distributed.nn.functional
from torch import Tensor, nn


@dataclass(frozen=True)
class Ranks:
    """The rank of this process among `size` ranks, and its device."""

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
    """The ranks of the existing process group, or of one opened by `torchrun`'s variables.

    A group that is opened here is closed at the end; an existing one stays open.
    """
    device = _device()
    opened = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if opened:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        if dist.is_initialized():
            yield Ranks(dist.get_rank(), dist.get_world_size(), device)
        else:
            yield Ranks(0, 1, device)
    finally:
        if opened:
            gc.collect()  # a model in a reference cycle would keep the group alive
            dist.destroy_process_group()


@contextmanager
def raising_together(ranks: Ranks) -> Iterator[None]:
    """If the body raises on any rank, every rank raises; the body must not wait for other ranks.

    No rank is left in a collective then: processes and process group can be used again. The errors
    have the attribute `on_all_ranks` for that: "here" where it was raised, "elsewhere" on others.
    """
    error: Exception | None = None
    if ranks.size > 1:
        through_gloo = "gloo" in dist.get_backend_config()  # it needs no memory of a full GPU
        device = torch.device("cpu") if through_gloo else ranks.device
        all_fine = torch.ones((), dtype=torch.int64, device=device)  # as long as there is memory
    try:
        yield
    except Exception as raised:
        error = raised
    if ranks.size > 1:
        all_fine.fill_(int(error is None))
        dist.all_reduce(all_fine, op=dist.ReduceOp.MIN)
        if error is not None:
            error.on_all_ranks = "here"  # type: ignore[attr-defined]
        elif not all_fine.item():
            error = RuntimeError("another rank raised an error")
            error.on_all_ranks = "elsewhere"  # type: ignore[attr-defined]
    if error is not None:
        raise error


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
    """Inside the context, running statistics are their means over the ranks; then as before.

    During training every rank has its own statistics of batch normalisation, which saves a
    broadcast per step. They are linear in the samples, so their mean equals the statistics that
    averaging at every step would give. They are restored so that evaluation has no side effects.
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
