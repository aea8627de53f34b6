"""The step of LARS and LAMB on lists of tensors, with norms and ratios on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.optimizers.buckets import Bucket, LayerwiseOptimizer, Settings, buckets_of, local
from trainers.optimizers.rules import check_settings

Tensors = list[Tensor] | tuple[Tensor, ...]


_HALF = (torch.float16, torch.bfloat16)

_Update = Callable[[Settings, Bucket, Tensor | None], None]


def step(
    optimizer: LayerwiseOptimizer, closure: Callable[[], float] | None, update: _Update
) -> float | None:
    """One step; a `GradScaler`'s scale is taken off the gradients, and infinite ones left out.

    The scaler leaves `grad_scale` and `found_inf` with the optimizer for the time of the step; the
    device decides, and the host does not wait for it.
    """
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    found: Tensor | None = getattr(optimizer, "found_inf", None)
    with torch.no_grad():
        work = []
        for number, group in enumerate(optimizer.param_groups):
            check_settings(group)
            work += [(group, bucket) for bucket in buckets_of(optimizer, number)]
        clips = any(group["max_grad_norm"] is not None for group in optimizer.param_groups)
        norm = _total_norm(optimizer, [bucket for _, bucket in work]) if clips else None
        for group, bucket in work:
            bucket.skipped = optimizer.skipped
            factor = _factor(group["max_grad_norm"], norm, scale, bucket)
            with nullcontext() if found is None else _unless(found, bucket):
                update(group, bucket, factor)
            bucket.grads = []  # a kept bucket would keep them beside the next ones
        if found is not None:
            counted = found.double() if optimizer.skipped is None else optimizer.skipped + found
            optimizer.skipped = counted
    return loss


@contextmanager
def _unless(found: Tensor, bucket: Bucket) -> Iterator[None]:
    """What the context changes is put back where `found` is not 0."""
    changed = [*bucket.params, *(tensor for moments in bucket.moments for tensor in moments)]
    before = [tensor.clone() for tensor in changed]
    yield
    for tensor, old in zip(changed, before, strict=True):
        torch.where(found.to(tensor.device) != 0, old, tensor, out=tensor)


def settle(optimizer: LayerwiseOptimizer) -> None:
    """Take the steps that a scaler has left out off the steps counted; waits for the device."""
    if optimizer.skipped is None:
        return
    skipped = int(optimizer.skipped)
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] -= skipped
    optimizer.skipped = None


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


def _total_norm(optimizer: LayerwiseOptimizer, buckets: Sequence[Bucket]) -> Tensor:
    params = (p for group in optimizer.param_groups for p in group["params"])
    home = local(next(p for p in params if not p.is_meta)).device  # those of other ranks are
    norms = [_norms(bucket.grads, bucket.groups).to(home) for bucket in buckets]
    total = torch.linalg.vector_norm(torch.cat([torch.zeros(1, device=home), *norms]))
    partition = optimizer.partition_group
    return _reduced(total, () if partition is None else (partition,))


def _factor(
    limit: float | None, norm: Tensor | None, scale: Tensor | None, bucket: Bucket
) -> Tensor | None:
    """By which gradients are multiplied: clipped to a norm, and without a scaler's scale."""
    if scale is None and (limit is None or norm is None):
        return None
    weight = bucket.params[0]
    dtype = torch.float32 if weight.dtype in _HALF else weight.dtype
    unscaled = None if scale is None else scale.to(weight.device).double().reciprocal()
    if limit is None or norm is None:
        assert unscaled is not None
        return unscaled.to(dtype)
    factor = norm.to(weight.device)
    if unscaled is not None:
        factor = factor * unscaled
    factor = torch.clamp(limit / factor, max=1.0)
    return (factor if unscaled is None else factor * unscaled).to(dtype)


def update_lars(group: Settings, bucket: Bucket, clip: Tensor | None) -> None:
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
    group: Settings, bucket: Bucket, clip: Tensor | None
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


def update_lamb(group: Settings, bucket: Bucket, clip: Tensor | None) -> None:
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


def _lamb_direction(group: Settings, bucket: Bucket, clip: Tensor | None) -> tuple[Tensors, float]:
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
    update, scale, eps, rest = torch._foreach_sqrt(square), 1.0, group["eps"], None
    if corrects and bucket.skipped is not None:  # the device alone knows how many steps there were
        count = (step - bucket.skipped).to(update[0].device)
        torch._foreach_mul_(update, torch.rsqrt(1 - beta2**count).to(update[0].dtype))
        rest = (1 / (1 - beta1**count)).to(update[0].dtype)
    elif corrects:
        root = math.sqrt(1 - beta2**step)
        scale, eps = root / (1 - beta1**step), eps * root
    torch._foreach_add_(update, eps)
    torch._foreach_reciprocal_(update)
    torch._foreach_mul_(update, mean)
    if rest is not None:
        torch._foreach_mul_(update, rest)
    if decay != 0 and group["decoupled"]:
        torch._foreach_add_(update, params, alpha=decay / scale)
    return update, scale
