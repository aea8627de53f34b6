"""What is turned while training: schedules, and what a controller made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from autotune.trial import Change
from trainers.optimizers import make_optimizer
from trainers.settings import SAMPLED, Settings


def build_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """The optimizer that `settings` name; `Knobs.turn` sets its numbers before every step.

    Raises:
        ValueError: an option out of range, or a variant that the optimizer does not have.
    """
    options = {k: v(0.0) if callable(v) else v for k, v in settings.options.items()}
    if "beta1" in options:
        options["betas"] = options.pop("beta1"), options.pop("beta2")
    return make_optimizer(settings.optimizer, model, lr=0.0, **options)


class Knobs:
    """Learning rate, momentum, weight decay, trust coefficient, smoothing and batch size.

    Args:
        settings: with a schedule for each.
        ranks: their number, which no batch size may be below.
        state: what `state` gave, or empty.

    Raises:
        ValueError: a batch size below the number of ranks.
    """

    def __init__(self, settings: Settings, ranks: int, state: Mapping[str, Any]) -> None:
        options = settings.options
        self.smoothing = settings.label_smoothing
        self._lr = settings.lr
        self._batch_size = settings.batch_size
        self._momentum = options["beta1"] if "beta1" in options else options["momentum"]
        self._beta2: float | None = options.get("beta2")
        self._weight_decay = options["weight_decay"]
        self._trust = options.get("trust_coefficient")
        self._ranks = ranks
        self._lr_factor: float = state.get("lr_factor", 1.0)
        self._set_batch_size: int | None = state.get("batch_size")
        self._set_momentum: float | None = state.get("momentum")
        for progress in SAMPLED:
            self._check(self.batch_size(progress))

    def _check(self, batch_size: int) -> None:
        if batch_size < self._ranks:
            raise ValueError(
                f"batch_size must be at least the number of ranks, {self._ranks}, got {batch_size}"
            )

    def change(self, change: Change) -> None:
        """Follow a controller: the factors of the learning rate multiply, the others replace."""
        self._lr_factor *= change.lr_factor
        if change.batch_size is not None:
            self._check(change.batch_size)
            self._set_batch_size = change.batch_size
        if change.momentum is not None:
            self._set_momentum = change.momentum

    def lr(self, progress: float) -> float:
        return self._lr(progress) * self._lr_factor

    def momentum(self, progress: float) -> float:
        """The momentum, or the first beta of an optimizer that has betas."""
        return self._momentum(progress) if self._set_momentum is None else self._set_momentum

    def batch_size(self, progress: float) -> int:
        """The global batch, the nearest whole number to its schedule."""
        if self._set_batch_size is not None:
            return self._set_batch_size
        return round(self._batch_size(progress))

    def turn(self, optimizer: Optimizer, progress: float) -> None:
        """Set the optimizer's numbers for `progress`; a group without weight decay keeps none."""
        lr, momentum = self.lr(progress), self.momentum(progress)
        weight_decay = self._weight_decay(progress)
        for group in optimizer.param_groups:
            group["lr"] = lr
            if self._beta2 is None:
                group["momentum"] = momentum
            else:
                group["betas"] = momentum, self._beta2
            if group["decays"]:
                group["weight_decay"] = weight_decay
            if self._trust is not None:
                group["trust_coefficient"] = self._trust(progress)

    def state(self) -> dict[str, Any]:
        """What controllers changed."""
        return {
            "lr_factor": self._lr_factor,
            "batch_size": self._set_batch_size,
            "momentum": self._set_momentum,
        }
