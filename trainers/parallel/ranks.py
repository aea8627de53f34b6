"""The ranks of the caller's or torchrun's process group, or a single rank."""

from __future__ import annotations

import gc
import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

# Its functions bind the process group that exists at import time as their default. If it is
# imported later (by DistributedDataParallel), it keeps the group that is opened here alive after
# its end, and a thread of gloo that frees a tensor while Python shuts down aborts the process.
import torch.distributed.nn.functional
from torch import Tensor, nn

from trainers.parallel import mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# The second name up to torch 2.12.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Ranks:
    """The rank of this process among `size` ranks, and its device.

    Args:
        group: their process group; None: all ranks.
    """

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None = None

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
            dist.all_reduce(values, group=self.group)
        return values


def along(mesh: DeviceMesh, name: str, ranks: Ranks) -> Ranks:
    """This rank among those that differ along one dimension of a mesh of all ranks."""
    group = mesh.get_group(name)
    return Ranks(dist.get_rank(group), dist.get_world_size(group), ranks.device, group)


def ranks_of_a_machine(data: Ranks, key: str = "all_reduce_group_size") -> int:
    """How many ranks each machine has, by the machines' names; collective.

    Args:
        key: that says it otherwise, for messages.
    """
    names: list[str] = [""] * data.size
    dist.all_gather_object(names, socket.gethostname(), group=data.group)
    sizes = {*Counter(names).values()}
    neighbours = names == sorted(names, key=names.index)
    if len(sizes) > 1 or not neighbours:
        rule = "must be given where machines do not have equally many ranks, one after another"
        raise ValueError(f"{key} {rule}: {', '.join(names)}")
    return sizes.pop()


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The ranks of the existing process group, or of one opened by `torchrun`'s variables.

    A group that is opened here is closed at the end; an existing one stays open.
    """
    own = device()
    opened = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if opened:
        dist.init_process_group("cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo")
    try:
        if dist.is_initialized():
            yield Ranks(dist.get_rank(), dist.get_world_size(), own)
        else:
            yield Ranks(0, 1, own)
    finally:
        if opened:
            gc.collect()  # a model in a reference cycle would keep the group alive
            mesh.forget()
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


def device() -> torch.device:
    """The GPU of this process by `LOCAL_RANK`, from now on its current one; else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(own)
    return own


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
    try:
        average(own, ranks)
        yield
    finally:
        fill(own, kept)


def average(tensors: Sequence[Tensor], ranks: Ranks) -> None:
    """Their means over the ranks, in place and in one message."""
    if ranks.size > 1:
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        fill(tensors, ranks.sum(flat) / ranks.size)


@torch.no_grad()
def fill(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Give tensors the values of a vector, one after another."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
