"""LARS and LAMB on torch's foreach kernels, and one constructor for these, SGD and AdamW.

Two implementations of LARS can differ by half of the weights after thirty steps, because papers and
frameworks disagree on where the learning rate enters and on the definition of the trust ratio. Each
such choice is a setting here, and `VARIANTS` has the settings of published implementations.

A step never waits for the device: norms, trust ratios and clip factors stay tensors. All work is
done on lists of tensors; only the multiplication by the per-layer ratios is one kernel per
adapted tensor, since torch has no foreach kernel whose scalars live on the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.optimizer import ParamsT

from trainers.buckets import Kept, Settings
from trainers.layerwise import settle, step, update_lamb, update_lars
from trainers.optimizer_rules import check_settings, unknown

_FUSED = ("cpu", "cuda")

__all__ = ["LAMB", "LARS", "VARIANTS", "make_optimizer", "parameter_groups", "variant_settings"]

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

    >>> import torch
    >>> w = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> w.grad = torch.tensor([0.0, 2.0])
    >>> LARS([w], lr=1.0, trust_coefficient=0.1).step()
    >>> w.data
    tensor([3.0000, 3.5000])
    """

    _moments: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    _step_supports_amp_scaling: ClassVar[bool] = True  # `GradScaler` leaves its scale to `step`
    skipped: Tensor | None = None

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
        self.kept: dict[int, Kept] = {}
        self.shard_group, self.partition_group = shard_group, partition_group
        super().__init__(params, {key: given[key] for key in _setting_names(LARS)})

    def __getstate__(self) -> Settings:
        return _with_process_groups(self, super().__getstate__())

    def add_param_group(self, param_group: Settings) -> None:
        """Adds a group; ValueError if one of its settings is out of range."""
        check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Makes one step; returns the closure's loss, if a closure is given."""
        return step(self, closure, update_lars)


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

    >>> import torch
    >>> w = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> w.grad = torch.tensor([0.0, 2.0])
    >>> LAMB([w], lr=0.1, eps=1e-12).step()
    >>> w.data
    tensor([3.0000, 3.5000])
    """

    _moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    _step_supports_amp_scaling: ClassVar[bool] = True  # `GradScaler` leaves its scale to `step`
    skipped: Tensor | None = None

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
        self.kept: dict[int, Kept] = {}
        self.shard_group, self.partition_group = shard_group, partition_group
        super().__init__(params, {key: given[key] for key in _setting_names(LAMB)})

    def __getstate__(self) -> Settings:
        settle(self)
        return _with_process_groups(self, super().__getstate__())

    def state_dict(self) -> Settings:
        """Returns the state; steps that a scaler has left out are not counted."""
        settle(self)
        return super().state_dict()

    def load_state_dict(self, state_dict: Settings) -> None:
        """Takes over a state."""
        super().load_state_dict(state_dict)
        self.skipped = None

    def add_param_group(self, param_group: Settings) -> None:
        """Adds a group; ValueError if one of its settings is out of range."""
        check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Makes one step; returns the closure's loss, if a closure is given."""
        return step(self, closure, update_lamb)


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
    check_settings({"weight_decay": weight_decay})
    if not callable(exclude) and exclude not in ("bias_and_norm", "none"):
        raise unknown("exclude", exclude, ("bias_and_norm", "none", "a function"))
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
        raise unknown("optimizer with variants", optimizer, VARIANTS)
    if variant not in VARIANTS[optimizer]:
        raise unknown(f"variant of {optimizer}", variant, VARIANTS[optimizer])
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
        name: of the optimizer, in any case.
        lr, weight_decay: >= 0.
        exclude: which parameters are neither decayed nor adapted; see `parameter_groups`.
        variant: settings of a named source, see `VARIANTS`; `settings` override them.
        settings: any further keyword of the optimizer's class.

    Raises:
        ValueError: unknown name, variant or setting, or a value out of range.

    >>> make_optimizer("lars", nn.Linear(2, 2), lr=1.0, variant="timm").param_groups[0]["eps"]
    1e-08
    """
    if name.lower() not in _OPTIMIZERS:
        raise unknown("optimizer", name, _OPTIMIZERS)
    name = name.lower()
    kind = _OPTIMIZERS[name]
    chosen = {**(variant_settings(name, variant) if variant is not None else {}), **settings}
    allowed = [key for key in inspect.signature(kind).parameters if key != "params"]
    for key in chosen:
        if key not in allowed:
            raise unknown(f"setting of {name}", key, allowed)
    check_settings({"lr": lr, **chosen})
    groups = parameter_groups(model, weight_decay=weight_decay, exclude=exclude)
    free = kind in (SGD, AdamW) and not chosen.keys() & {"foreach", "fused", "differentiable"}
    free &= kind is AdamW or not any(hasattr(p, "full_tensor") for p in model.parameters())
    if free and all(p.is_floating_point() and p.device.type in _FUSED for p in model.parameters()):
        chosen["fused"] = True
    return kind(groups, lr=lr, **chosen)


def _setting_names(kind: type[Optimizer]) -> list[str]:
    outside = ("params", "shard_group", "partition_group")
    return [key for key in inspect.signature(kind).parameters if key not in outside]


def _with_process_groups(optimizer: LARS | LAMB, state: Settings) -> Settings:
    """Keep the process groups in copies; pickling them raises, which is better than wrong norms."""
    groups = {key: getattr(optimizer, key) for key in ("shard_group", "partition_group")}
    return {**state, **groups, "kept": {}}
