"""Steps of Adam and LAMB with a variance that stays as it is, for momenta of few bits.

1-bit LAMB (Li et al. 2021, arXiv 2104.06069): a layer's trust ratio is its mean over the steps of
the warm-up, times a factor that follows how the variance would have changed. That variance is
computed from the gradients that the exchanged momenta imply, and the factor, the largest ratio of
the old root to the new one, stays within bounds and changes by a tenth at most in a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainers.optimizers import LAMB

_MEAN = 0.9
"""The share of the past in the mean of the trust ratio."""
_FACTORS = 0.5, 4.0
_CHANGE = 0.1


def kept(optimizer: Optimizer, parameters: Sequence[Tensor]) -> dict[str, dict[int, Tensor]]:
    """What steps keep beside the optimizer's state: equal on all ranks."""
    if not isinstance(optimizer, LAMB):
        return {}
    return {
        "variance": {i: torch.zeros_like(p) for i, p in enumerate(parameters)},
        "ratio": {i: p.new_ones(()) for i, p in enumerate(parameters)},
        "factor": {i: p.new_ones(()) for i, p in enumerate(parameters)},
    }


def steps(
    optimizer: Optimizer, parameters: Sequence[Tensor], kept: dict[str, dict[int, Tensor]]
) -> list[Any]:
    """What makes the step of each parameter, with what was kept."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    if not isinstance(optimizer, LAMB):
        first = optimizer.state[parameters[0]]
        counted = cache(lambda: float(first["step"]))  # a GPU is waited for; all have made as many
        return [AdamStep(p, groups[id(p)], optimizer.state[p], counted) for p in parameters]
    every = enumerate(parameters)
    return [LambStep(p, groups[id(p)], optimizer.state[p], i, kept) for i, p in every]


def momentum(state: dict[str, Any], group: dict[str, Any], gradient: Tensor) -> Tensor:
    """The next one, of this rank's gradient."""
    found: Tensor = state["exp_avg"].lerp(gradient, 1 - group["betas"][0])
    return found


def direction(
    momentum: Tensor, variance: Tensor, group: dict[str, Any], counted: tuple[float, float]
) -> Tensor:
    """Adam's, of moments of so many steps; 0 where nothing was ever seen to vary."""
    (beta1, beta2), corrects = group["betas"], group.get("bias_correction", True)
    first, second = (
        (1 - b**n) if corrects else 1.0 for b, n in zip((beta1, beta2), counted, strict=True)
    )
    found = momentum / (variance.sqrt().div_(math.sqrt(second)).add_(group["eps"])).mul_(first)
    return found.masked_fill_(variance == 0, 0.0)


@dataclass(frozen=True)
class AdamStep:
    """The step of one parameter, after AdamW has made those of the warm-up.

    Args:
        state: the optimizer's; its count of steps stays that of the variance.
        counted: gives that count.
    """

    parameter: Tensor
    group: dict[str, Any]
    state: Any
    counted: Callable[[], float]

    def warm(self) -> None:
        """After a step of the warm-up."""

    def make(self, momentum: Tensor, after: int) -> None:
        """Step with the momentum of all ranks, so many steps after the warm-up."""
        state, group = self.state, self.group
        state["exp_avg"].copy_(momentum)
        steps = (self.counted() + after, self.counted())
        moved = direction(momentum, state["exp_avg_sq"], group, steps)
        self.parameter.mul_(1 - group["lr"] * group["weight_decay"])
        self.parameter.sub_(moved, alpha=group["lr"])


@dataclass(frozen=True)
class LambStep:
    """As `AdamStep`, after LAMB.

    Args:
        place: of the parameter in what is kept.
        kept: the variance as it would have become, the trust ratio, and its factor.
    """

    parameter: Tensor
    group: dict[str, Any]
    state: Any
    place: int
    kept: dict[str, dict[int, Tensor]]

    def warm(self) -> None:
        """After a step of the warm-up: the mean of the ratio, and the variance up to now."""
        state = self.state
        self.kept["variance"][self.place].copy_(state["exp_avg_sq"])
        now = self._ratio(self._update(state["exp_avg"], 0))
        first = state["step"] == 1
        self.kept["ratio"][self.place].lerp_(now, 1.0 if first else 1 - _MEAN)

    def make(self, momentum: Tensor, after: int) -> None:
        """Step with the momentum of all ranks, so many steps after the warm-up."""
        state, group = self.state, self.group
        (beta1, beta2), eps = group["betas"], group["eps"]
        implied = (momentum - beta1 * state["exp_avg"]) / (1 - beta1)
        variance, factor = (self.kept[name][self.place] for name in ("variance", "factor"))
        variance.mul_(beta2).addcmul_(implied, implied, value=1 - beta2)
        state["exp_avg"].copy_(momentum)
        now = ((state["exp_avg_sq"].sqrt() + eps) / (variance.sqrt() + eps)).max().clamp(*_FACTORS)
        factor.copy_(now.clamp(factor * (1 - _CHANGE), factor * (1 + _CHANGE)))
        rate = group["lr"] * self.kept["ratio"][self.place] * factor
        self.parameter.sub_(self._update(momentum, after) * rate)

    def _update(self, momentum: Tensor, after: int) -> Tensor:
        counted, decay = float(self.state["step"]), self.group["weight_decay"]
        moments = momentum, self.state["exp_avg_sq"]
        found = direction(*moments, self.group, (counted + after, counted))
        return found.add_(self.parameter, alpha=decay)

    def _ratio(self, update: Tensor) -> Tensor:
        """LAMB's trust ratio, within its bounds; 1 where it adapts none or nothing moves."""
        group = self.group
        adapts = group["adapt"] == "always" or (
            group["adapt"] == "if_decayed" and group["weight_decay"]
        )
        weight, moved = self.parameter.norm(), update.norm()
        if not adapts:
            return torch.ones_like(weight)
        bounded = _within(weight, group["weight_norm_min"], group["weight_norm_max"])
        ratio = group["trust_coefficient"] * bounded / moved
        ratio = _within(ratio, group["trust_min"], group["trust_max"])
        return torch.where((bounded > 0) & (moved > 0), ratio, 1.0)


def _within(value: Tensor, low: float | None, high: float | None) -> Tensor:
    return value if low is None and high is None else value.clamp(low, high)
