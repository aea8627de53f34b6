"""States that were saved under one plan and are read under another.

Weights have the model's own names and the optimizer's order of parameters in every plan; a tensor
may be whole or sharded, over any mesh of the present ranks. Its numbers are in the same order, but
may be in another shape: `trainers.parallel.matrices.Heads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def whole(value: Tensor) -> Tensor:
    """The whole tensor on every rank; a tensor that is not sharded is returned."""
    full = getattr(value, "full_tensor", None)
    return value if full is None else full()


def on_host(state: Mapping[str, Tensor], kept: bool) -> dict[str, Tensor]:
    """Copies of the whole tensors on the host where they are `kept`; empty elsewhere."""
    found = {}
    for key, value in state.items():
        full = whole(value)
        if kept:
            found[key] = full.detach().to("cpu", copy=True)
    return found


def load(state: dict[str, Any], model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Load a learner's state into the model; collective where tensors are sharded otherwise.

    Returns:
        the state, with the optimizer's tensors as its parameters are.
    """
    own = model.state_dict()
    weights = {k: fitted(v, own[k]) if k in own else v for k, v in state["model"].items()}
    elsewhere = {k: v for k, v in own.items() if v.is_meta}  # on another rank of a pipeline
    model.load_state_dict({**weights, **elsewhere})
    return {**state, "optimizer": _optimizer_state(state["optimizer"], optimizer)}


def _optimizer_state(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def of(index: int, values: Mapping[str, Any]) -> dict[str, Any]:
        own = parameters[index].detach()
        return {
            name: _moment(value, own) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }

    return {**state, "state": {index: of(index, v) for index, v in state["state"].items()}}


def _moment(value: Tensor, own: Tensor) -> Tensor:
    """What an optimizer keeps of the parameter `own`, over the ranks as that is.

    Muon keeps the momentum of a convolution's kernel as a matrix with one row per output channel.
    """
    if _alike(value, own):
        return fitted(value, own)
    matrix = value.ndim == 2 < own.ndim and value.shape[0] == own.shape[0]
    return fitted(value, own.flatten(1)) if matrix and value.numel() == own.numel() else value


def _alike(value: Tensor, own: Tensor) -> bool:
    """Whether it has the shape of `own`, or the other one of the two that heads may have.

    An optimizer may keep a parameter's numbers in a shape of its own, which must stay.
    """
    of_heads = {value.ndim, own.ndim} == {2, 3} and value.numel() == own.numel()
    return value.shape == own.shape or (of_heads and value.shape[-1] == own.shape[-1])


def reshaped(value: Tensor, own: Tensor) -> Tensor:
    """The whole tensor in the shape of `own`, if it is that of the same parameter."""
    return value.reshape(own.shape) if _alike(value, own) else value


def fitted(value: Tensor, own: Tensor) -> Tensor:
    """The tensor, whole or sharded, over the ranks as `own` is, in its shape and on its device."""
    spread = getattr(own, "placements", None)
    if spread is None:
        return reshaped(whole(value), own)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(own, DTensor)
    mesh, device = own.device_mesh, own.to_local().device
    same = getattr(value, "placements", None) == spread
    same &= value.shape == own.shape
    if isinstance(value, DTensor) and same and value.device_mesh.shape == mesh.shape:
        return DTensor.from_local(
            value.to_local().to(device),
            mesh,
            spread,
            run_check=False,
            shape=value.shape,
            stride=value.stride(),
        )
    there = reshaped(whole(value), own).to(mesh.device_type)
    found: Tensor = distribute_tensor(there, mesh, spread, src_data_rank=None)
    return found
