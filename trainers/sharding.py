"""Models whose parameters, gradients and optimizer are sharded over the ranks (`fully_shard`).

Each rank keeps its part of every tensor; the parts of a model (its layers) are gathered one after
another as they are needed. Zhao et al., arXiv 2304.11277, after Rajbhandari et al., arXiv
1910.02054. What is gathered is gathered by all ranks, so all must make as many forward passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainers.distributed import Ranks
from trainers.stream import NO_LABEL, Batch

if TYPE_CHECKING:  # half a second that only what is sharded pays
    from torch.distributed.fsdp import FSDPModule

SHARDINGS = ("none", "full")


def sharded(model: nn.Module, units: Iterable[nn.Module]) -> FSDPModule:
    """The model, in place, each of its `units` gathered on its own and the rest at once."""
    from torch.distributed.fsdp import fully_shard

    for unit in units:
        fully_shard(unit)
    return fully_shard(model)


@contextmanager
def unsynchronised(model: FSDPModule) -> Iterator[None]:
    """Inside, gradients add up on each rank and are not shared out."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def like(value: Any, model: nn.Module) -> Any:
    """Nested dicts and lists with each sharded tensor on the mesh and device of the model's."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        own = next(p for p in model.parameters() if isinstance(p, DTensor))
        return DTensor.from_local(
            value.to_local().to(own.to_local().device),
            own.device_mesh,
            value.placements,
            run_check=False,
            shape=value.shape,
            stride=value.stride(),
        )
    if isinstance(value, dict):
        return {k: like(v, model) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(like(v, model) for v in value)
    return value


def whole(value: Tensor) -> Tensor:
    """All of a tensor, on every rank; of one that is not sharded, itself."""
    full = getattr(value, "full_tensor", None)
    return value if full is None else full()


def split(batch: Batch, samples: int, ranks: Ranks, most: int | None) -> list[Batch]:
    """The batch in as many parts as on the rank with the largest one.

    A rank with less to do than there are parts repeats its first item without a label.

    Args:
        samples: in the global batch.
        most: items of a part; None: as many as there are.
    """
    x, y = batch
    largest = -(-samples // (y[0].numel() * ranks.size))
    count = -(-largest // (most or largest))
    if len(y) >= count:
        return list(zip(x.tensor_split(count), y.tensor_split(count), strict=True))
    parts = list(zip(torch.split(x, 1), torch.split(y, 1), strict=True))
    return [*parts, *[_unlabelled(batch)] * (count - len(parts))]


def in_step(batches: Sequence[Batch], ranks: Ranks) -> Iterator[Batch]:
    """The batches of an evaluation, and then such without a label until all ranks have ended."""
    yield from batches
    most = torch.tensor(len(batches), device=ranks.device)
    if ranks.size > 1:
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    for _ in range(int(most) - len(batches)):
        yield _unlabelled(batches[0])


def _unlabelled(batch: Batch) -> Batch:
    x, y = batch
    return x[:1], torch.full_like(y[:1], NO_LABEL)
