"""Pruning by magnitude: single weights, or whole hidden channels, fewer and fewer while training.

A number as `sparsity` is reached along the cubic ramp of Zhu and Gupta (2017, arXiv 1710.01878),
s (1 - (1 - progress / sparsity_ramp)^3); a schedule is followed as it is. Masks are of the weights
now; what is masked is 0 after every step, and so stays the smallest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from autotune.schedules import Constant
from trainers.compression.smallest import kept_of, removed
from trainers.compression.structure import Group, groups_of
from trainers.models.library import named
from trainers.readers import SAMPLED, NotAllowedError, Number, Schedule, one_of, scheduled
from trainers.technique import Knob, when

PRUNINGS = ("none", "unstructured", "structured")
SCOPES = ("layer", "global")


def _rising(value: Any) -> Any:
    """Reads a share of the weights, or a schedule of it that never falls."""
    found: Schedule = scheduled(Number(0.0, 1.0))(value)
    values = [found(progress) for progress in SAMPLED]
    if any(later < earlier for earlier, later in pairwise(values)):
        raise NotAllowedError("a number at least 0 and less than 1, or a schedule that never falls")
    return found


def _ramp(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise NotAllowedError("a number more than 0 and at most 1, a progress")
    return value


_PRUNED = when("pruning", "unstructured", "structured")
KNOBS: Mapping[str, Knob] = {
    "pruning": Knob("none", one_of(PRUNINGS), "both"),
    "sparsity": Knob(Constant(0.0), _rising, "both", _PRUNED, memory=False),
    "sparsity_ramp": Knob(0.5, _ramp, "both", _PRUNED, memory=False),
    "pruning_scope": Knob("layer", one_of(SCOPES), "both", _PRUNED, memory=False),
}


@dataclass(frozen=True)
class Ramp:
    """Cubic from 0 at progress 0 to `end` at progress `until`.

    >>> Ramp(0.8, 0.5)(0.25), Ramp(0.8, 0.5)(0.9)
    (0.7, 0.8)
    """

    end: float
    until: float

    def __call__(self, progress: float) -> float:
        left = max(1 - progress / self.until, 0.0)
        return self.end * (1 - left**3)


def schedule_of(sparsity: Schedule, ramp: float) -> Schedule:
    """The sparsity as a function of progress."""
    return Ramp(sparsity.value, ramp) if isinstance(sparsity, Constant) else sparsity


@dataclass(frozen=True)
class Prunable:
    """What of a model is pruned: `weights` one by one, or the channels of `groups`."""

    weights: Sequence[str]
    groups: Sequence[Group]
    scope: str

    @property
    def scored(self) -> Sequence[str]:
        """The parameters whose values say what goes, one for each layer."""
        return [group.weight for group in self.groups] or self.weights

    def removed(self, values: Mapping[str, Tensor], sparsity: float) -> tuple[int, ...]:
        """How many weights or channels of each layer, or of all together, go."""
        found = [values[name] for name in self.scored]
        sizes = [len(value) if self.groups else value.numel() for value in found]
        sizes = [sum(sizes)] if self.scope == "global" else sizes
        return tuple(removed(size, sparsity) for size in sizes)

    def masks(self, values: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        """What stays of each parameter, as bools that broadcast to it.

        Of n weights, or channels, int(n * sparsity) go, and at least one of each layer stays.
        """
        if self.groups:
            scores = {g.weight: _rms(values[g.weight]) for g in self.groups}
        else:
            scores = {name: values[name].detach().abs().flatten() for name in self.weights}
        kept = kept_of(scores, sparsity, self.scope)
        if not self.groups:
            return {name: mask.view_as(values[name]) for name, mask in kept.items()}
        found = {}
        for group in self.groups:
            for name in (group.weight, *group.beside):
                rest = (1,) * (values[name].dim() - 1)
                found[name] = kept[group.weight].view(-1, *rest)
        return found


def prunable(model: nn.Module, pruning: str, scope: str) -> Prunable:
    """Of a model: all weights of more than one dimension, or its hidden channels."""
    if pruning == "structured":
        return Prunable((), groups_of(model), scope)
    matrices = [name for name, value in model.named_parameters() if value.dim() > 1]
    return Prunable(matrices, (), scope)


def _rms(weight: Tensor) -> Tensor:
    """The root mean square of each channel's weights, so that layers can be compared."""
    return weight.detach().flatten(1).square().mean(1).sqrt()


def check(own: Mapping[str, Any], optimizer: str) -> None:
    """Raise a ValueError, one line, for a training that cannot be pruned so."""
    pruning = own["pruning"]
    if pruning == "none":
        return
    if optimizer.startswith("schedulefree"):
        raise ValueError(f"pruning must be 'none' with optimizer {optimizer!r}, got {pruning!r}")
    if pruning == "structured" and named(own["model"]):
        rule = "needs model mlp, resnet8, resnet18 or resnet50"
        raise ValueError(f"pruning 'structured' {rule}, got {own['model']!r}")
    if pruning == "structured" and own["model"] != "mlp" and own["norm"] != "batch":
        raise ValueError(f"pruning 'structured' needs norm 'batch', got {own['norm']!r}")
