"""LARS and LAMB on torch's foreach kernels.

Two implementations of LARS can differ by half of the weights after thirty steps, because papers and
frameworks disagree on where the learning rate enters and on the definition of the trust ratio. Each
such choice is a setting here.

A step never waits for the device: norms, trust ratios and clip factors stay tensors. All work is
done on lists of tensors; only the multiplication by the per-layer ratios is one kernel per
adapted tensor, since torch has no foreach kernel whose scalars live on the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import ClassVar, Literal

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from trainers.optimizers.buckets import Kept, Settings
from trainers.optimizers.layerwise import settle, step, update_lamb, update_lars
from trainers.optimizers.rules import check_settings


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
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
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
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
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


def _setting_names(kind: type[Optimizer]) -> list[str]:
    outside = ("params", "shard_group", "partition_group")
    return [key for key in inspect.signature(kind).parameters if key not in outside]


def _with_process_groups(optimizer: LARS | LAMB, state: Settings) -> Settings:
    """Keep the process groups in copies; pickling them raises, which is better than wrong norms."""
    groups = {key: getattr(optimizer, key) for key in ("shard_group", "partition_group")}
    return {**state, **groups, "kept": {}}
