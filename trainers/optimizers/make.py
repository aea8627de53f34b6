"""One constructor for all optimizers: torch's, ours, and those of the library `schedulefree`.

`VARIANTS` has the settings with which LARS and LAMB compute what published implementations do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adafactor, AdamW, NAdam, Optimizer
from torch.optim.optimizer import ParamsT

from trainers.optimizers import schedule_free
from trainers.optimizers.buckets import Settings
from trainers.optimizers.groups import Exclude, matrix_groups, parameter_groups
from trainers.optimizers.layerwise_optimizers import LAMB, LARS
from trainers.optimizers.muon import Muon, torch_muon
from trainers.optimizers.rules import check_settings, unknown

_FUSED = ("cpu", "cuda")

__all__ = [
    "LAMB",
    "LARS",
    "NAMES",
    "VARIANTS",
    "Muon",
    "adafactor",
    "make_optimizer",
    "nadamw",
    "parameter_groups",
    "require_optimizer",
    "variant_settings",
]

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


class _NAdamW(NAdam):
    """Torch's NAdam, whose product of momenta stays on the host as it was when a state is loaded.

    Torch gives it the parameter's device and dtype, as if it were a moment. Each step reads it on
    the host, which would wait for the GPU once per parameter; and bfloat16 would round it.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        own = (p for group in self.param_groups for p in group["params"])
        saved = (number for group in state_dict["param_groups"] for number in group["params"])
        for parameter, number in zip(own, saved, strict=True):
            if number in state_dict["state"]:
                product = state_dict["state"][number]["mu_product"]
                self.state[parameter]["mu_product"] = product.to("cpu", copy=True)


def nadamw(
    params: ParamsT,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 0.004,
    foreach: bool | None = None,
) -> NAdam:
    """Torch's NAdam with decoupled weight decay.

    Args:
        foreach: as torch's.
        momentum_decay: >= 0; the first beta of step t is beta1 (1 - 0.96^(t momentum_decay) / 2).

    Source: Dozat 2016; with decoupled weight decay in Nado et al. 2021, arXiv 2102.06356.
    """
    return _NAdamW(
        params,
        lr,
        betas,
        eps,
        weight_decay,
        momentum_decay=momentum_decay,
        decoupled_weight_decay=True,
        foreach=foreach,
    )


def adafactor(
    params: ParamsT,
    lr: float,
    *,
    beta2_decay: float = -0.8,
    clip_threshold: float = 1.0,
    eps: float = 1e-3,
    weight_decay: float = 0.0,
    foreach: bool | None = None,
) -> Adafactor:
    """Torch's Adafactor: of a matrix it keeps the mean squares of rows and columns only.

    Args:
        lr: of a step relative to the root mean square of a tensor's weights, and at most 1 / the
            square root of the number of steps.
        beta2_decay: < 0; the second moment's share of the past in step t is 1 - t^beta2_decay.
        clip_threshold: >= 1, the most that the root mean square of an update may be; torch's `d`.
        eps: the least root mean square of weights that counts.
        foreach: as torch's, which takes a tensor at a time by default.

    Source: Shazeer and Stern 2018, arXiv 1804.04235.
    """
    return Adafactor(
        params,
        lr,
        beta2_decay,
        (None, eps),
        clip_threshold,
        weight_decay,
        foreach=foreach,
    )


_OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "adamw": AdamW,
    "nadamw": nadamw,
    "lars": LARS,
    "lamb": LAMB,
    "muon": Muon,
    "adafactor": adafactor,
}
NAMES = (*_OPTIMIZERS, *schedule_free.KINDS)


def require_optimizer(name: str) -> Callable[..., Optimizer]:
    """The class or constructor of an optimizer.

    Raises:
        ValueError: unknown, or what it needs is not installed.
    """
    if name not in NAMES:
        raise unknown("optimizer", name, NAMES)
    if name in schedule_free.KINDS:
        return schedule_free.kind_of(name)
    if name == "muon":
        torch_muon()
    return _OPTIMIZERS[name]


def make_optimizer(
    name: str,
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    exclude: Exclude = "bias_and_norm",
    variant: str | None = None,
    kind: Callable[..., Optimizer] | None = None,
    **settings: Any,
) -> Optimizer:
    """Builds an optimizer for a model; torch's SGD and AdamW are fused where they can be.

    Args:
        name: one of `NAMES`, in any case. "schedulefree_sgd" and "schedulefree_adamw" need
            `train()` before steps and `eval()` before evaluations and checkpoints.
        lr, weight_decay: >= 0.
        exclude: which parameters are neither decayed nor adapted; see `parameter_groups`.
        variant: settings of a named source, see `VARIANTS`; `settings` override them.
        kind: a constructor in place of the name's own.
        settings: any further keyword of the optimizer's class.

    Raises:
        ValueError: an unknown name, variant or setting, a value out of range, or torch is too old.

    >>> make_optimizer("lars", nn.Linear(2, 2), lr=1.0, variant="timm").param_groups[0]["eps"]
    1e-08
    """
    if name.lower() not in NAMES:
        raise unknown("optimizer", name, NAMES)
    name = name.lower()
    kind = kind or require_optimizer(name)
    chosen = {**(variant_settings(name, variant) if variant is not None else {}), **settings}
    allowed = [key for key in inspect.signature(kind).parameters if key != "params"]
    for key in chosen:
        if key not in allowed:
            raise unknown(f"setting of {name}", key, allowed)
    check_settings({"lr": lr, **chosen})
    if name in schedule_free.KINDS:
        schedule_free.check(name, chosen.get("betas", (chosen.get("momentum", 0.9),))[0])
    split = matrix_groups if kind is Muon else parameter_groups
    groups = split(model, weight_decay=weight_decay, exclude=exclude)
    free = kind in (SGD, AdamW, Muon) and not chosen.keys() & {
        *("foreach", "fused", "differentiable")
    }
    free &= kind is not SGD or not any(hasattr(p, "full_tensor") for p in model.parameters())
    here = [p for p in model.parameters() if not p.is_meta]  # others are on other ranks
    if free and all(p.is_floating_point() and p.device.type in _FUSED for p in here):
        chosen["fused"] = True
    made = kind(groups, lr=lr, **chosen)
    if kind is SGD:
        made.register_step_pre_hook(_begin_momenta)
    return made


def _begin_momenta(optimizer: Optimizer, *_: Any) -> None:
    """Before a scaler's first step: torch's fused SGD begins with momenta that it does not fill.

    It leaves them as the memory was where gradients overflow, and goes on with them.
    """
    if optimizer.state or getattr(optimizer, "found_inf", None) is None:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if parameter.grad is not None:
                momentum = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                optimizer.state[parameter]["momentum_buffer"] = momentum
