"""The modules of a model with their matrices divided over the ranks, as the model says.

All parameters become tensors of one mesh, those that are whole on every rank too: an operation on
a list of tensors cannot have both kinds in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:  # an import of half a second, for divided models only
    from torch.distributed.device_mesh import DeviceMesh


class Heads(nn.Module):
    """A linear layer for queries, keys and values, of which a rank has those of its own heads.

    Args:
        weight: of all heads, with the queries' rows first, then the keys' and the values'.
        mesh: of one dimension.
        in_parts: every rank has a part of the input's sequence instead of all of it.
    """

    def __init__(self, weight: Tensor, mesh: DeviceMesh, in_parts: bool) -> None:
        from torch.distributed.tensor import Shard, distribute_tensor

        super().__init__()
        three = weight.detach().reshape(3, -1, weight.shape[1])
        self.weight = nn.Parameter(distribute_tensor(three, mesh, [Shard(1)], src_data_rank=None))
        self._mesh = mesh
        self._in_parts = in_parts

    def forward(self, x: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        weight: Any = self.weight
        layout = Shard(1) if self._in_parts else Replicate()
        spread = DTensor.from_local(x, self._mesh, [layout], run_check=False)
        x = spread.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return F.linear(x, weight.to_local().flatten(0, 1))


def divide(model: Any, mesh: DeviceMesh, in_parts: bool) -> None:
    """Divide the model's matrices in place; its scores are divided by the vocabulary.

    Args:
        model: says `tensor_plan` and `units`.
        mesh: of one dimension.
        in_parts: sequence parallel.
    """
    from torch.distributed.tensor import Replicate, Shard, distribute_module
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    layout = Shard(1) if in_parts else Replicate()
    ways = {
        "columns": ColwiseParallel(input_layouts=layout),
        "rows": RowwiseParallel(output_layouts=layout),
        "vocabulary": RowwiseParallel(input_layouts=Replicate(), output_layouts=layout),
    }
    plan: Mapping[str, str] = model.tensor_plan()
    inside = {id(module) for unit in model.units() for module in unit.modules()}
    for name, module in [*model.named_modules()]:
        if plan.get(name) == "heads":
            owner, _, attribute = name.rpartition(".")
            parent = model.get_submodule(owner)
            setattr(parent, attribute, Heads(module.weight, mesh, in_parts))
            parent.heads //= mesh.size()
        elif name in plan:
            parallelize_module(module, mesh, ways[plan[name]], src_data_rank=None)
        elif [*module.parameters(recurse=False)]:
            leave = _local if id(module) in inside else _before_scores
            distribute_module(module, mesh, None, partial(_spread, layout), leave)


def _spread(layout: Any, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(inputs[0], mesh, [layout], run_check=False)


def _local(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
    return output.to_local()


def _before_scores(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
    """The next product is with a divided matrix that is no module of its own."""
    from torch.distributed.tensor import Replicate

    return output.redistribute(placements=[Replicate()])


def beside(parameter: Any) -> Any:
    """Along which dimension a divided parameter is sharded too (`fully_shard`): another one.

    Only the first may have a length that the ranks do not divide.
    """
    from torch.distributed.tensor import Shard

    last = parameter.ndim - 1
    (placement,) = parameter.placements
    return Shard(0) if placement.is_replicate() or placement.is_shard(last) else Shard(last)
