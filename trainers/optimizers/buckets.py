"""The tensors of LARS and LAMB in lists: buckets for one list operation each."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

Settings = dict[str, Any]


class LayerwiseOptimizer(Protocol):
    """The attributes of LARS and LAMB that `step` uses."""

    param_groups: list[Settings]
    state: Any
    shard_group: dist.ProcessGroup | None
    partition_group: dist.ProcessGroup | None
    skipped: Tensor | None
    kept: dict[int, Kept]
    _moments: ClassVar[tuple[str, ...]]


_BUCKET_ELEMENTS = 2**21
_PLAIN = (Tensor, nn.Parameter)


@dataclass
class Bucket:
    """Local tensors for one list operation: same device, dtype, sharding and step count.

    `owners` are the parameters whose tensors these are.
    """

    groups: tuple[dist.ProcessGroup, ...]
    step: int
    params: list[Tensor]
    grads: list[Tensor]
    moments: tuple[list[Tensor], ...]
    owners: list[Tensor]
    skipped: Tensor | None = None
    elements: int = 0


@dataclass(frozen=True)
class Kept:
    """The buckets of a group at its last step, and what they were made of, by identity."""

    params: list[int]
    moments: list[int]
    buckets: list[Bucket]


def buckets_of(optimizer: LayerwiseOptimizer, number: int) -> list[Bucket]:
    """The tensors of group `number`'s parameters that have a gradient; counts their step.

    The buckets of the last step are used again with the new gradients, which takes the host a
    fifth of the time, unless something else than these has changed.
    """
    params = optimizer.param_groups[number]["params"]
    kept = optimizer.kept.get(number)
    if kept is not None and _again(optimizer, params, kept):
        return kept.buckets
    optimizer.kept.pop(number, None)  # parameters may now differ in their steps
    made = _sorted(optimizer, params)
    plain = all(type(p) in _PLAIN and p.grad is not None for p in params)
    if plain and optimizer.shard_group is None:
        ids = [id(p) for p in params]
        optimizer.kept[number] = Kept(ids, _identities(optimizer, params), made)
    return made


def _again(optimizer: LayerwiseOptimizer, params: list[Tensor], kept: Kept) -> bool:
    """Give kept buckets the new gradients and count the step, if they are still those of before."""
    if list(map(id, params)) != kept.params or _identities(optimizer, params) != kept.moments:
        return False
    grads = [[owner.grad for owner in bucket.owners] for bucket in kept.buckets]
    if any(grad is None or grad.is_sparse for found in grads for grad in found):
        return False
    for bucket, found in zip(kept.buckets, grads, strict=True):
        first = bucket.params[0]
        if (found[0].device, found[0].dtype) != (first.device, first.dtype):  # type: ignore[union-attr]
            return False
    for bucket, found in zip(kept.buckets, grads, strict=True):
        bucket.grads = found  # type: ignore[assignment]
        states = [optimizer.state[owner] for owner in bucket.owners]
        if "step" in states[0]:
            bucket.step = states[0]["step"] + 1
            for state in states:
                state["step"] = bucket.step
    return True


def _identities(optimizer: LayerwiseOptimizer, params: list[Tensor]) -> list[int]:
    """Of the moments of all parameters."""
    states = [optimizer.state[parameter] for parameter in params]
    return [id(state.get(name)) for state in states for name in optimizer._moments]


def _sorted(optimizer: LayerwiseOptimizer, params: list[Tensor]) -> list[Bucket]:
    """Sorts the parameters that have a gradient, and counts their step.

    Temporary tensors are as large as a bucket, so a bucket ends at a size that keeps them small
    (on a CPU: in memory that the allocator reuses). Shards stay together: one all-reduce each.
    """
    buckets: list[Bucket] = []
    open_buckets: dict[Hashable, Bucket] = {}
    for parameter in params:
        if parameter.grad is None:
            continue
        state = optimizer.state[parameter] or _new_state(optimizer, parameter)
        if "step" in state:
            state["step"] += 1
        groups, grad = _sharding(parameter, optimizer.shard_group)
        weight, step = local(parameter), state.get("step", 0)
        key = (weight.device, weight.dtype, groups, step)
        limit = _BUCKET_ELEMENTS if weight.device.type == "cpu" else 16 * _BUCKET_ELEMENTS
        bucket = open_buckets.get(key)
        if bucket is None or (not groups and bucket.elements + weight.numel() > limit):
            moments: tuple[list[Tensor], ...] = tuple([] for _ in optimizer._moments)
            bucket = open_buckets[key] = Bucket(groups, step, [], [], moments, [])
            buckets.append(bucket)
        bucket.owners.append(parameter)
        bucket.params.append(weight)
        bucket.grads.append(grad)
        for moment, name in zip(bucket.moments, optimizer._moments, strict=True):
            moment.append(local(state[name]))
        bucket.elements += weight.numel()
    return buckets


def _new_state(optimizer: LayerwiseOptimizer, parameter: Tensor) -> Settings:
    squares = "exp_avg_sq" in optimizer._moments
    if parameter.is_complex() or (squares and parameter.dtype == torch.float16):
        raise ValueError(
            f"{type(optimizer).__name__} cannot update {parameter.dtype} parameters;"
            " keep float32 parameters and use autocast"
        )
    state: Settings = optimizer.state[parameter]
    if squares:
        state["step"] = 0
    for name in optimizer._moments:
        state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


def _sharding(
    parameter: Tensor, shard_group: dist.ProcessGroup | None
) -> tuple[tuple[dist.ProcessGroup, ...], Tensor]:
    """Returns the process groups that share a tensor's elements, and its local gradient."""
    grad: Any = parameter.grad
    if grad.is_sparse:
        raise RuntimeError("LARS and LAMB need dense gradients, got a sparse one")
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return (() if shard_group is None else (shard_group,)), grad
    placements = parameter.placements  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise ValueError(f"a parameter must not be a partial sum, got placements {placements}")
    if grad.placements != placements:
        grad = grad.redistribute(placements=placements)
    sharded = (dim for dim, placement in enumerate(placements) if not placement.is_replicate())
    return tuple(mesh.get_group(dim) for dim in sharded), local(grad)


def local(tensor: Any) -> Tensor:
    """This rank's part of a sharded tensor; any other tensor itself."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found
