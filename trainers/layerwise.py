"""The step of LARS and LAMB on lists of tensors, with norms and ratios on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.optimizer_rules import check_settings

Settings = dict[str, Any]
Tensors = list[Tensor] | tuple[Tensor, ...]


class LayerwiseOptimizer(Protocol):
    """The attributes of LARS and LAMB that `step` uses."""

    param_groups: list[Settings]
    state: Any
    shard_group: dist.ProcessGroup | None
    partition_group: dist.ProcessGroup | None
    _moments: ClassVar[tuple[str, ...]]


_HALF = (torch.float16, torch.bfloat16)
_BUCKET_ELEMENTS = 2**21


@dataclass
class _Bucket:
    """Local tensors for one list operation: same device, dtype, sharding and step count."""

    groups: tuple[dist.ProcessGroup, ...]
    step: int
    params: list[Tensor]
    grads: list[Tensor]
    moments: tuple[list[Tensor], ...]
    elements: int = 0


_Update = Callable[[Settings, _Bucket, Tensor | None], None]


def step(
    optimizer: LayerwiseOptimizer, closure: Callable[[], float] | None, update: _Update
) -> float | None:
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    with torch.no_grad():
        work = []
        for group in optimizer.param_groups:
            check_settings(group)
            work += [(group, bucket) for bucket in _buckets(optimizer, group)]
        clips = any(group["max_grad_norm"] is not None for group in optimizer.param_groups)
        norm = _total_norm(optimizer, [bucket for _, bucket in work]) if clips else None
        for group, bucket in work:
            update(group, bucket, _clip_factor(group["max_grad_norm"], norm, bucket))
    return loss


def _buckets(optimizer: LayerwiseOptimizer, group: Settings) -> list[_Bucket]:
    """Sorts the parameters that have a gradient, and counts their step.

    Temporary tensors are as large as a bucket, so a bucket ends at a size that keeps them small
    (on a CPU: in memory that the allocator reuses). Shards stay together: one all-reduce each.
    """
    buckets: list[_Bucket] = []
    open_buckets: dict[Hashable, _Bucket] = {}
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        state = optimizer.state[parameter] or _new_state(optimizer, parameter)
        if "step" in state:
            state["step"] += 1
        groups, grad = _sharding(parameter, optimizer.shard_group)
        weight, step = _local(parameter), state.get("step", 0)
        key = (weight.device, weight.dtype, groups, step)
        limit = _BUCKET_ELEMENTS if weight.device.type == "cpu" else 16 * _BUCKET_ELEMENTS
        bucket = open_buckets.get(key)
        if bucket is None or (not groups and bucket.elements + weight.numel() > limit):
            moments: tuple[list[Tensor], ...] = tuple([] for _ in optimizer._moments)
            bucket = open_buckets[key] = _Bucket(groups, step, [], [], moments)
            buckets.append(bucket)
        bucket.params.append(weight)
        bucket.grads.append(grad)
        for moment, name in zip(bucket.moments, optimizer._moments, strict=True):
            moment.append(_local(state[name]))
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
    return tuple(mesh.get_group(dim) for dim in sharded), _local(grad)


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _norms(tensors: Tensors, groups: Sequence[dist.ProcessGroup]) -> Tensor:
    """Returns one norm per tensor, of the whole tensor where only a shard is here."""
    dtype = torch.float32 if tensors[0].dtype in _HALF else None
    return _reduced(torch.stack(torch._foreach_norm(tensors, 2, dtype)), groups)


def _reduced(norms: Tensor, groups: Sequence[dist.ProcessGroup]) -> Tensor:
    if not groups:
        return norms
    squares = norms.double().square()
    for group in groups:
        dist.all_reduce(squares, group=group)
    return squares.sqrt().to(norms.dtype)


def _total_norm(optimizer: LayerwiseOptimizer, buckets: Sequence[_Bucket]) -> Tensor:
    home = _local(optimizer.param_groups[0]["params"][0]).device
    norms = [_norms(bucket.grads, bucket.groups).to(home) for bucket in buckets]
    total = torch.linalg.vector_norm(torch.cat([torch.zeros(1, device=home), *norms]))
    partition = optimizer.partition_group
    return _reduced(total, () if partition is None else (partition,))


def _clip_factor(limit: float | None, norm: Tensor | None, bucket: _Bucket) -> Tensor | None:
    if limit is None or norm is None:
        return None
    weight = bucket.params[0]
    dtype = torch.float32 if weight.dtype in _HALF else weight.dtype
    return torch.clamp(limit / norm, max=1.0).to(weight.device, dtype)


def update_lars(group: Settings, bucket: _Bucket, clip: Tensor | None) -> None:
    momentum, params, velocity = group["momentum"], bucket.params, bucket.moments[0]
    inner, outer = (group["lr"], 1.0) if group["lr_in_momentum"] else (1.0, group["lr"])
    direction, rates = _lars_direction(group, bucket, clip)
    torch._foreach_mul_(velocity, momentum)
    if not group["nesterov"]:
        if rates is None:
            torch._foreach_add_(velocity, direction, alpha=inner)
        else:
            torch._foreach_addcmul_(velocity, direction, (rates * inner).unbind())
        torch._foreach_add_(params, velocity, alpha=-outer)
        return
    scale = inner if rates is None else (rates * inner).unbind()
    if direction is bucket.grads:
        direction = torch._foreach_mul(direction, scale)
    else:
        torch._foreach_mul_(direction, scale)
    torch._foreach_add_(velocity, direction)
    torch._foreach_add_(direction, velocity, alpha=momentum)
    torch._foreach_add_(params, direction, alpha=-outer)


def _lars_direction(
    group: Settings, bucket: _Bucket, clip: Tensor | None
) -> tuple[Tensors, Tensor | None]:
    """Returns g + weight_decay w, and one trust ratio per tensor unless the group has none."""
    decay, params, rates = group["weight_decay"], bucket.params, None
    of_sum = group["denominator"] == "norm_of_sum"
    grads: Tensors = bucket.grads
    if clip is not None:
        grads = torch._foreach_mul(grads, clip)
    if _adapts(group) and not of_sum:
        rates = _lars_ratios(group, _norms([*params, *grads], bucket.groups))
    if decay != 0 and clip is not None:
        torch._foreach_add_(grads, params, alpha=decay)
    elif decay != 0:
        grads = torch._foreach_add(grads, params, alpha=decay)
    if _adapts(group) and of_sum:
        rates = _lars_ratios(group, _norms([*params, *grads], bucket.groups))
    return grads, rates


def _adapts(group: Settings) -> bool:
    decayed: bool = group["weight_decay"] != 0
    return group["adapt"] == "always" or (group["adapt"] == "if_decayed" and decayed)


def _lars_ratios(group: Settings, norms: Tensor) -> Tensor:
    weight, below = norms.chunk(2)
    of_sum = group["denominator"] == "norm_of_sum"
    decayed = below if of_sum else below + group["weight_decay"] * weight
    ratio = group["trust_coefficient"] * weight / (decayed + group["eps"])
    if group["larc_clip"]:
        ratio = (ratio / group["lr"]).clamp(max=1.0)
    return _bounded(group, ratio, weight, below)


def _bounded(group: Settings, ratio: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """Applies the bounds, then makes the ratio 1 where it means nothing, as for new zero layers."""
    low, high = group["trust_min"], group["trust_max"]
    if low is not None or high is not None:
        ratio = ratio.clamp(low, high)
    return torch.where((above > 0) & (below > 0), ratio, 1.0)


def update_lamb(group: Settings, bucket: _Bucket, clip: Tensor | None) -> None:
    params = bucket.params
    update, scale = _lamb_direction(group, bucket, clip)
    if not _adapts(group):
        torch._foreach_add_(params, update, alpha=-group["lr"] * scale)
        return
    weight, below = _norms([*params, *update], bucket.groups).chunk(2)
    low, high = group["weight_norm_min"], group["weight_norm_max"]
    if low is not None or high is not None:
        weight = weight.clamp(low, high)
    ratio = group["trust_coefficient"] * weight / (below * scale)
    rates = _bounded(group, ratio, weight, below) * (-group["lr"] * scale)
    torch._foreach_addcmul_(params, update, rates.unbind())


def _lamb_direction(group: Settings, bucket: _Bucket, clip: Tensor | None) -> tuple[Tensors, float]:
    """Returns u / scale and scale: the bias correction costs no pass over the tensors."""
    (beta1, beta2), decay, params = group["betas"], group["weight_decay"], bucket.params
    mean, square = bucket.moments
    grads: Tensors = bucket.grads
    if clip is not None:
        grads = torch._foreach_mul(grads, clip)
    if decay != 0 and not group["decoupled"]:
        grads = torch._foreach_add(grads, params, alpha=decay)
    if group["grad_averaging"]:
        torch._foreach_lerp_(mean, grads, 1 - beta1)
    else:
        torch._foreach_mul_(mean, beta1)
        torch._foreach_add_(mean, grads)
    torch._foreach_mul_(square, beta2)
    torch._foreach_addcmul_(square, grads, grads, value=1 - beta2)
    del grads  # before the next temporary is made
    corrects, step = group["bias_correction"], bucket.step
    root = math.sqrt(1 - beta2**step) if corrects else 1.0
    scale = root / (1 - beta1**step) if corrects else 1.0
    update = torch._foreach_sqrt(square)
    torch._foreach_add_(update, group["eps"] * root)
    torch._foreach_reciprocal_(update)
    torch._foreach_mul_(update, mean)
    if decay != 0 and group["decoupled"]:
        torch._foreach_add_(update, params, alpha=decay / scale)
    return update, scale
