"""Models whose parameters, gradients and optimizer are sharded over the ranks (`fully_shard`).

Each rank has its part of every tensor; the layers of a model are gathered one after another as they
are needed. Zhao et al., arXiv 2304.11277, after Rajbhandari et al., arXiv 1910.02054. Gathering is
collective, so all ranks must make the same number of forward passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from trainers.distributed import Ranks
from trainers.stream import NO_LABEL, Batch

if TYPE_CHECKING:  # an import of half a second, for sharded models only
    from torch.distributed.fsdp import FSDPModule

SHARDINGS = ("none", "full")


def sharded(
    model: nn.Module, units: Iterable[nn.Module], dtype: torch.dtype | None = None
) -> FSDPModule:
    """Shard the model in place, with each of its `units` gathered on its own.

    Args:
        dtype: of autocast, in which the weights of the units' linear layers are gathered: they are
            cast to it anyway, so that ranks compute what one process does. Gradients are summed,
            and parameters updated, in their own. None: no autocast.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if dtype is None:
        for unit in units:
            fully_shard(unit)
        return fully_shard(model)
    policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    for unit in units:
        linear: list[nn.Module] = [m for m in unit.modules() if isinstance(m, nn.Linear)]
        fully_shard(linear, mp_policy=policy)
    return fully_shard(model)


@contextmanager
def unsynchronised(model: FSDPModule) -> Iterator[None]:
    """Inside the context, gradients accumulate on each rank without synchronisation."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def on_mesh_of(value: Any, model: nn.Module) -> Any:
    """Nested dicts and lists with each sharded tensor on the mesh and device of the model's."""
    from torch.distributed.tensor import DTensor

    own = next(p for p in model.parameters() if isinstance(p, DTensor))

    def moved(tensor: DTensor) -> DTensor:
        return DTensor.from_local(
            tensor.to_local().to(own.to_local().device),
            own.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )

    return tree_map_only(DTensor, moved, value)


def whole(value: Tensor) -> Tensor:
    """The whole tensor on every rank; a tensor that is not sharded is returned."""
    full = getattr(value, "full_tensor", None)
    return value if full is None else full()


def split(batch: Batch, samples: int, ranks: Ranks, most: int | None) -> list[Batch]:
    """Split the batch into as many parts as the rank with the largest batch has.

    A rank with fewer items than parts repeats its first item without a label.

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
    """The batches of an evaluation, and unlabelled ones until all ranks have finished."""
    yield from batches
    most = torch.tensor(len(batches), device=ranks.device)
    if ranks.size > 1:
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    for _ in range(int(most) - len(batches)):
        yield _unlabelled(batches[0])


def _unlabelled(batch: Batch) -> Batch:
    x, y = batch
    return x[:1], torch.full_like(y[:1], NO_LABEL)
