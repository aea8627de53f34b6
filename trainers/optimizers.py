"""LARS and LAMB on torch's foreach kernels, and one door to them and to torch's SGD and AdamW.

Two implementations called LARS can differ by half of the weights after thirty steps, because
papers and frameworks disagree on where the learning rate enters and on what is divided by what.
Here each such choice is a setting, and `VARIANTS` names the sources that chose it.

A step never waits for the device: norms, trust ratios and clip factors stay tensors. All work is
done on lists of tensors; only the multiplication by the per-layer ratios is one kernel per
adapted tensor, since torch has no foreach kernel whose scalars live on the device.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.optimizer import ParamsT

__all__ = ["LAMB", "LARS", "VARIANTS", "make_optimizer", "parameter_groups", "variant_settings"]

Settings = dict[str, Any]
Tensors = list[Tensor] | tuple[Tensor, ...]
Exclude = Literal["bias_and_norm", "none"] | Callable[[str, nn.Parameter], bool]

VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "lars": {
            "paper": {"lr_in_momentum": True, "denominator": "sum_of_norms", "eps": 0.0},
            "optax": {"lr_in_momentum": True, "denominator": "norm_of_sum", "eps": 0.0},
            "timm": {"lr_in_momentum": False, "eps": 1e-8, "adapt": "if_decayed"},
            "larc": {
                "lr_in_momentum": False,
                "eps": 1e-8,
                "trust_coefficient": 0.02,
                "larc_clip": True,
            },
        },
        "lamb": {
            "paper": {"eps": 1e-6},
            "optax": {"eps": 1e-6},
            "nvidia": {"eps": 1e-6, "max_grad_norm": 1.0, "adapt": "if_decayed"},
            "nvlamb": {"eps": 1e-6, "max_grad_norm": 1.0},
            "cybertronai": {"eps": 1e-6, "bias_correction": False, "weight_norm_max": 10.0},
        },
    }
)


class LARS(Optimizer):
    r"""Layer-wise adaptive rate scaling: SGD with momentum and one trust ratio per tensor.

    With weights w, gradient g, buffer v and settings by name::

        ratio = trust_coefficient |w| / (|g| + weight_decay |w| + eps)
        v = momentum v + lr ratio (g + weight_decay w);    w = w - v

    The ratio is 1 where |w| or |g| is zero. Every setting may be changed in `param_groups`
    before any step.

    Args:
        params: parameters or groups, as for every torch optimizer.
        lr: learning rate, >= 0.
        momentum: in [0, 1).
        weight_decay: L2 coefficient, >= 0, added to the gradient before it is scaled.
        trust_coefficient: > 0.
        eps: added to the ratio's denominator, >= 0.
        nesterov: steps by lr ratio (g + weight_decay w) + momentum v instead of v.
        lr_in_momentum: True as in the paper, optax and TensorFlow. False as in timm, Bolts and
            apex: v leaves lr out and w = w - lr v, so that a change of lr rescales the past too.
        denominator: "sum_of_norms" as above, or optax's "norm_of_sum", |g + weight_decay w| + eps.
        trust_min, trust_max: bounds on the ratio, > 0 or None (1e-5 and 1 in Alibaba's DAWNBench).
        larc_clip: min(ratio / lr, 1), so that no layer's rate lr ratio is above lr (apex LARC).
        adapt: "always", "never" (ratio 1), or "if_decayed": only while weight_decay is not 0.
        max_grad_norm: > 0 or None; gradients are scaled down to this norm over all groups.
        shard_group: process group over which every plain tensor is one shard; norms are summed
            over it. DTensors (FSDP2, tensor parallel) need none. Every rank must hold the same
            parameters and gradients, though their shards may be empty.
        partition_group: process group over which whole parameters are dealt out (ZeRO 1,
            pipelines); only `max_grad_norm` needs it.

    Raises:
        ValueError: a setting is out of range.
        RuntimeError: at `step`, a gradient is sparse.

    Source: You, Gitman, Ginsburg 2017, arXiv 1708.03888.

    >>> w = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> w.grad = torch.tensor([0.0, 2.0])
    >>> LARS([w], lr=1.0, trust_coefficient=0.1).step()
    >>> w.data
    tensor([3.0000, 3.5000])
    """

    _moments: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        eps: float = 0.0,
        nesterov: bool = False,
        lr_in_momentum: bool = True,
        denominator: Literal["sum_of_norms", "norm_of_sum"] = "sum_of_norms",
        trust_min: float | None = None,
        trust_max: float | None = None,
        larc_clip: bool = False,
        adapt: Literal["always", "if_decayed", "never"] = "always",
        max_grad_norm: float | None = None,
        shard_group: dist.ProcessGroup | None = None,
        partition_group: dist.ProcessGroup | None = None,
    ) -> None:
        given = locals()
        self.shard_group, self.partition_group = shard_group, partition_group
        super().__init__(params, {key: given[key] for key in _setting_names(LARS)})

    def __getstate__(self) -> Settings:
        return _with_process_groups(self, super().__getstate__())

    def add_param_group(self, param_group: Settings) -> None:
        """Adds a group; ValueError if one of its settings is out of range."""
        _check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Makes one step; returns the closure's loss, if a closure is given."""
        return _step(self, closure, _update_lars)


class LAMB(Optimizer):
    r"""Layer-wise adaptive moments: Adam's direction and one trust ratio per tensor.

    With Adam's bias-corrected moments m and s::

        u = m / (sqrt(s) + eps) + weight_decay w
        w = w - lr ratio u;    ratio = trust_coefficient phi(|w|) / |u|

    phi bounds |w| by `weight_norm_min` and `weight_norm_max`; the ratio is 1 where phi(|w|) or
    |u| is zero. Every setting may be changed in `param_groups` before any step.

    Args:
        params: parameters or groups, as for every torch optimizer; float16 is refused, because
            squared gradients underflow in it.
        lr: learning rate, >= 0.
        betas: decay of the two moments, each in [0, 1).
        eps: added to the root of the second moment, >= 0.
        weight_decay: >= 0.
        trust_coefficient: > 0.
        bias_correction: False in cybertronai's code and early versions of the paper.
        grad_averaging: False adds the gradient to m with weight 1 instead of 1 - beta1 (NVIDIA).
        decoupled: False adds weight_decay w to the clipped gradient instead (NVIDIA's mode 0).
        weight_norm_min, weight_norm_max: bounds of phi, > 0 or None (cybertronai: 10).
        trust_min, trust_max: bounds on the ratio, > 0 or None (timm's trust_clip: 1).
        adapt: "always" (paper, optax, NVIDIA's use_nvlamb), "never" (ratio 1), or NVIDIA's and
            timm's default "if_decayed": only while weight_decay is not 0.
        max_grad_norm: > 0 or None; gradients are scaled down to this norm over all groups before
            anything else (NVIDIA: 1).
        shard_group, partition_group: as for `LARS`.

    Raises:
        ValueError: a setting is out of range; at `step`, a parameter is float16 or complex.
        RuntimeError: at `step`, a gradient is sparse.

    Source: You et al. 2020, arXiv 1904.00962.

    >>> w = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> w.grad = torch.tensor([0.0, 2.0])
    >>> LAMB([w], lr=0.1, eps=1e-12).step()
    >>> w.data
    tensor([3.0000, 3.5000])
    """

    _moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1.0,
        bias_correction: bool = True,
        grad_averaging: bool = True,
        decoupled: bool = True,
        weight_norm_min: float | None = None,
        weight_norm_max: float | None = None,
        trust_min: float | None = None,
        trust_max: float | None = None,
        adapt: Literal["always", "if_decayed", "never"] = "always",
        max_grad_norm: float | None = None,
        shard_group: dist.ProcessGroup | None = None,
        partition_group: dist.ProcessGroup | None = None,
    ) -> None:
        given = locals()
        self.shard_group, self.partition_group = shard_group, partition_group
        super().__init__(params, {key: given[key] for key in _setting_names(LAMB)})

    def __getstate__(self) -> Settings:
        return _with_process_groups(self, super().__getstate__())

    def add_param_group(self, param_group: Settings) -> None:
        """Adds a group; ValueError if one of its settings is out of range."""
        _check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Makes one step; returns the closure's loss, if a closure is given."""
        return _step(self, closure, _update_lamb)


def parameter_groups(
    model: nn.Module, *, weight_decay: float, exclude: Exclude = "bias_and_norm"
) -> list[Settings]:
    """Splits a model's parameters into decayed, adapted ones and excluded ones.

    The key `decays` tells schedules of weight decay which group is theirs.

    Args:
        weight_decay: of the first group, >= 0; the second has 0 and `adapt="never"`.
        exclude: "bias_and_norm" excludes biases, the parameters of normalisation layers and all
            that have at most one dimension; "none" excludes nothing; a function of a parameter's
            name and value decides itself.

    Raises:
        ValueError: the model has no parameters, or an argument is not one of the above.

    >>> [len(g["params"]) for g in parameter_groups(nn.Linear(2, 2), weight_decay=1e-4)]
    [1, 1]
    """
    _check_settings({"weight_decay": weight_decay})
    if not callable(exclude) and exclude not in ("bias_and_norm", "none"):
        raise _unknown("exclude", exclude, ("bias_and_norm", "none", "a function"))
    norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    in_norms = {id(p) for m in model.modules() if isinstance(m, norms) for p in m.parameters(False)}

    def excluded(name: str, parameter: nn.Parameter) -> bool:
        if callable(exclude):
            return exclude(name, parameter)
        is_bias = name.rpartition(".")[2].startswith("bias")
        small = is_bias or parameter.ndim <= 1 or id(parameter) in in_norms
        return exclude == "bias_and_norm" and small

    split: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, parameter in model.named_parameters():
        split[bool(excluded(name, parameter))].append(parameter)
    if not any(split):
        raise ValueError(f"model must have parameters, {type(model).__name__} has none")
    decayed = {"params": split[0], "weight_decay": weight_decay, "decays": True}
    plain = {"params": split[1], "weight_decay": 0.0, "decays": False, "adapt": "never"}
    return [group for group in (decayed, plain) if group["params"]]


def variant_settings(optimizer: str, variant: str) -> Settings:
    """Returns the settings that make "lars" or "lamb" compute what a named source computes.

    Raises:
        ValueError: no such optimizer or variant.

    >>> variant_settings("lars", "timm")
    {'lr_in_momentum': False, 'eps': 1e-08, 'adapt': 'if_decayed'}
    """
    if optimizer not in VARIANTS:
        raise _unknown("optimizer with variants", optimizer, VARIANTS)
    if variant not in VARIANTS[optimizer]:
        raise _unknown(f"variant of {optimizer}", variant, VARIANTS[optimizer])
    return dict(VARIANTS[optimizer][variant])


_OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "adamw": AdamW,
    "lars": LARS,
    "lamb": LAMB,
}


def make_optimizer(
    name: str,
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    exclude: Exclude = "bias_and_norm",
    variant: str | None = None,
    **settings: Any,
) -> Optimizer:
    """Builds "sgd" or "adamw" (torch's, fused where it can be), "lars" or "lamb" for a model.

    Args:
        lr, weight_decay: >= 0.
        exclude: which parameters are neither decayed nor adapted; see `parameter_groups`.
        variant: settings of a named source, see `VARIANTS`; `settings` override them.
        settings: any further keyword of the optimizer's class.

    Raises:
        ValueError: unknown name, variant or setting, or a value out of range.

    >>> make_optimizer("lars", nn.Linear(2, 2), lr=1.0, variant="timm").param_groups[0]["eps"]
    1e-08
    """
    if name not in _OPTIMIZERS:
        raise _unknown("optimizer", name, _OPTIMIZERS)
    kind = _OPTIMIZERS[name]
    chosen = {**(variant_settings(name, variant) if variant is not None else {}), **settings}
    allowed = [key for key in inspect.signature(kind).parameters if key != "params"]
    for key in chosen:
        if key not in allowed:
            raise _unknown(f"setting of {name}", key, allowed)
    _check_settings({"lr": lr, **chosen})
    groups = parameter_groups(model, weight_decay=weight_decay, exclude=exclude)
    free = kind in (SGD, AdamW) and not chosen.keys() & {"foreach", "fused", "differentiable"}
    if free and all(p.is_floating_point() and p.device.type in _FUSED for p in model.parameters()):
        chosen["fused"] = True
    return kind(groups, lr=lr, **chosen)


# Everything below is how a step is made.

_FUSED = ("cpu", "cuda")
_HALF = (torch.float16, torch.bfloat16)
_BUCKET_ELEMENTS = 2**21


@dataclass
class _Bucket:
    """Local tensors that one list operation can take: same device, dtype, sharding and age."""

    groups: tuple[dist.ProcessGroup, ...]
    step: int
    params: list[Tensor]
    grads: list[Tensor]
    moments: tuple[list[Tensor], ...]
    elements: int = 0


_Update = Callable[[Settings, _Bucket, Tensor | None], None]


def _step(
    optimizer: LARS | LAMB, closure: Callable[[], float] | None, update: _Update
) -> float | None:
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    with torch.no_grad():
        work = []
        for group in optimizer.param_groups:
            _check_settings(group)
            work += [(group, bucket) for bucket in _buckets(optimizer, group)]
        clips = any(group["max_grad_norm"] is not None for group in optimizer.param_groups)
        norm = _total_norm(optimizer, [bucket for _, bucket in work]) if clips else None
        for group, bucket in work:
            update(group, bucket, _clip_factor(group["max_grad_norm"], norm, bucket))
    return loss


def _buckets(optimizer: LARS | LAMB, group: Settings) -> list[_Bucket]:
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


def _new_state(optimizer: LARS | LAMB, parameter: Tensor) -> Settings:
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


def _total_norm(optimizer: LARS | LAMB, buckets: Sequence[_Bucket]) -> Tensor:
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


def _update_lars(group: Settings, bucket: _Bucket, clip: Tensor | None) -> None:
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


def _update_lamb(group: Settings, bucket: _Bucket, clip: Tensor | None) -> None:
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


def _setting_names(kind: type[Optimizer]) -> list[str]:
    outside = ("params", "shard_group", "partition_group")
    return [key for key in inspect.signature(kind).parameters if key not in outside]


def _with_process_groups(optimizer: LARS | LAMB, state: Settings) -> Settings:
    """Keeps the groups in copies; pickling them fails loudly, which beats local norms unseen."""
    groups = {key: getattr(optimizer, key) for key in ("shard_group", "partition_group")}
    return {**state, **groups}


def _real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _one_of(*names: str) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value in names), " or ".join(map(repr, names))


_NOT_NEGATIVE = (lambda value: _real(value) and value >= 0), "a finite number >= 0"
_POSITIVE = (lambda value: _real(value) and value > 0), "a finite number > 0"
_BOUND = (lambda value: value is None or (_real(value) and value > 0)), "None or a number > 0"
_FRACTION = (lambda value: _real(value) and 0 <= value < 1), "a number in [0, 1)"
_FLAG = (lambda value: isinstance(value, bool)), "True or False"


def _is_betas(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_FRACTION[0], value))


_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "lr": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
    "eps": _NOT_NEGATIVE,
    "momentum": _FRACTION,
    "betas": (_is_betas, "two numbers in [0, 1)"),
    "trust_coefficient": _POSITIVE,
    **dict.fromkeys(("trust_min", "trust_max", "max_grad_norm"), _BOUND),
    **dict.fromkeys(("weight_norm_min", "weight_norm_max"), _BOUND),
    **dict.fromkeys(("nesterov", "lr_in_momentum", "larc_clip"), _FLAG),
    **dict.fromkeys(("bias_correction", "grad_averaging", "decoupled"), _FLAG),
    "denominator": _one_of("sum_of_norms", "norm_of_sum"),
    "adapt": _one_of("always", "if_decayed", "never"),
}


def _check_settings(settings: Mapping[str, Any]) -> None:
    for key, (holds, allowed) in _RULES.items():
        if key in settings and not holds(settings[key]):
            raise ValueError(f"{key} must be {allowed}, got {settings[key]!r}")
    for name in ("trust", "weight_norm"):
        low, high = settings.get(f"{name}_min"), settings.get(f"{name}_max")
        if low is not None and high is not None and low > high:
            raise ValueError(f"{name}_min must be at most {name}_max ({high}), got {low}")


def _unknown(kind: str, value: object, allowed: Mapping[str, Any] | Sequence[str]) -> ValueError:
    nearest = difflib.get_close_matches(str(value).lower(), list(allowed), n=1, cutoff=0.0)
    return ValueError(
        f"unknown {kind} {value!r}; allowed: {', '.join(allowed)}; nearest: {nearest[0]!r}"
    )
