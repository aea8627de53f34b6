"""A training's compression, as its learner uses it: masks, rounded weights, a teacher's scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autotune.schedules import Constant
from trainers.compression import prune, quantize
from trainers.compression.distill import Teacher
from trainers.compression.prune import Prunable
from trainers.compression.quantize import is_quantized, rounded
from trainers.data.stream import Batch
from trainers.readers import Schedule

Masks = Mapping[str, Tensor]
Compared = Callable[[Tensor, Tensor, float, str], Tensor]
"""As `trainers.criterion.Criterion.loss`."""
USES: Mapping[str, str | None] = {"pruning": "none", "quantization": "none", "teacher": None}
"""The keys that make a model smaller, with their defaults: none of it."""


@dataclass(frozen=True)
class Smaller:
    """What makes a model smaller.

    Args:
        prunable: what is pruned; None: nothing.
        sparsity: the share of it that goes, a function of progress that never falls.
        quantization: one of `quantize.QUANTIZATIONS`.
    """

    prunable: Prunable | None
    sparsity: Schedule
    quantization: str

    def exported(self, weights: Mapping[str, Tensor], masks: Masks) -> tuple[Masks, dict[str, Any]]:
        """The masks at the last sparsity, and the weights that have them.

        Args:
            masks: those of the training now.
        """
        if self.prunable is None:
            return {}, dict(weights)
        found = {k: m.to(weights[k].device) for k, m in masks.items()}
        masked = {k: v * found[k] if k in found else v for k, v in weights.items()}
        final = self.prunable.masks(masked, self.sparsity(1.0))
        return final, {k: v * final[k] if k in final else v for k, v in masked.items()}


class Compression:
    """The compression of a model that is trained.

    Args:
        model: before it is copied, or swapped layers are; its parameters are masked in place.
        smaller: what is made of it; None: nothing, it has a teacher only.
        teacher: whose scores the loss follows; None: of no other model's.
        measured: metrics of the exported model, of the whole weights as they are trained and the
            masks.
    """

    def __init__(
        self,
        model: nn.Module,
        smaller: Smaller | None,
        teacher: Teacher | None,
        measured: Callable[[Mapping[str, Tensor], Masks], dict[str, float]],
    ) -> None:
        self._parameters = dict(model.named_parameters())
        self._smaller = smaller or Smaller(None, Constant(0.0), "none")
        self._teacher = teacher
        self._measured = measured
        self._removed: tuple[int, ...] = ()
        self.masks: dict[str, Tensor] = {}
        """What stays of the parameters that are pruned, as bools; empty before the first step."""

    def at(self, progress: float) -> None:
        """Take the masks of this progress, in [0, 1], before a step."""
        prunable = self._smaller.prunable
        if prunable is None:
            return
        sparsity = self._smaller.sparsity(progress)
        counts = prunable.removed(self._parameters, sparsity)
        if counts != self._removed or not self.masks:
            self._removed = counts
            self.masks = prunable.masks(self._parameters, sparsity)
            self.mask()

    @torch.no_grad()
    def mask(self) -> None:
        """Set what is masked to 0, as after a step of the optimizer."""
        for name, mask in self.masks.items():
            self._parameters[name].mul_(mask)

    def compared(self, parts: Sequence[Batch], usual: Compared) -> Compared:
        """The loss of a step's parts, in their order: the usual one, where there is no teacher."""
        teacher = self._teacher
        if teacher is None:
            return usual
        scores = iter([teacher.scores(x) for x, _ in parts])

        def loss(out: Tensor, y: Tensor, smoothing: float, how: str) -> Tensor:
            return teacher.loss(out, y, next(scores), smoothing, how)

        return loss

    @contextmanager
    def exported(self, copied: bool = False) -> Iterator[None]:
        """Within it the parameters are those of the exported model.

        Args:
            copied: they are for a model whose layers do not round their weights themselves.
        """
        if self._smaller.prunable is None and self._smaller.quantization == "none":
            yield
            return
        own = {name: value.detach().clone() for name, value in self._parameters.items()}
        how = self._smaller.quantization
        rounds = how == "post_training" or (copied and how == "qat")
        _, weights = self._smaller.exported(own, self.masks)
        with torch.no_grad():
            for name, value in weights.items():
                made = rounded(value) if rounds and is_quantized(name, value) else value
                self._parameters[name].copy_(made)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in own.items():
                    self._parameters[name].copy_(value)

    def measure(self, weights: Mapping[str, Tensor]) -> dict[str, float]:
        """Metrics of the model that is exported of the whole weights as they are trained."""
        return self._measured(weights, self.masks)

    def metrics(self) -> dict[str, float]:
        """The share of what is pruned that is masked now."""
        if self._smaller.prunable is None:
            return {}
        named = self._smaller.prunable.scored
        total = sum(self.masks[name].numel() for name in named if name in self.masks)
        kept = sum(int(self.masks[name].sum()) for name in named if name in self.masks)
        return {"sparsity": 1 - kept / total if total else 0.0}

    def state(self) -> dict[str, Any]:
        """What a checkpoint has of it."""
        return {"masks": dict(self.masks)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`; an empty one is that of a training without masks.

        Where nothing is pruned here, what a parent has pruned is trained again.
        """
        found = state.get("masks", {}) if self._smaller.prunable is not None else {}
        device = {name: value.device for name, value in self._parameters.items()}
        self.masks = {name: mask.to(device[name]) for name, mask in found.items()}
        self._removed = ()
        self.mask()


def smaller_of(model: nn.Module, own: Mapping[str, Any]) -> Smaller | None:
    """What the keys of a configuration make of a model; None: nothing.

    Args:
        model: its parameters' names and shapes are of interest only.
    """
    how, pruning = own["quantization"], own["pruning"]
    if pruning == "none" and how == "none":
        return None
    pruned = prune.prunable(model, pruning, own["pruning_scope"]) if pruning != "none" else None
    return Smaller(pruned, prune.schedule_of(own["sparsity"], own["sparsity_ramp"]), how)


def check(
    own: Mapping[str, Any],
    optimizer: str,
    compile: bool | str,
    shards: bool,
    every_step: bool,
    sent: str,
) -> None:
    """Raise a ValueError, one line, for a compression that does not go with the training.

    Args:
        sent: the `gradient_compression`.
        every_step: gradients are averaged in each, so that all ranks have the same weights.
    """
    for key, default in USES.items():
        if own[key] != default and shards:
            raise ValueError(f"data_parallel_shard_degree must be 1 with {key} {own[key]!r}")
        if own[key] != default and not every_step:  # ranks would have masks of their own
            raise ValueError(f"synchronization must be 'every_step' with {key} {own[key]!r}")
    if own["pruning"] != "none" and sent == "dgc":  # what it holds back is of removed weights, too
        how = f"pruning {own['pruning']!r}"
        raise ValueError(f"gradient_compression must be other than 'dgc' with {how}")
    prune.check(own, optimizer)
    quantize.check(own, compile)
