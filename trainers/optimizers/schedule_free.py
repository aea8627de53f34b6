"""Schedule-free SGD and AdamW of the library `schedulefree`, in the training loop.

Gradients are taken at y, a mixture of the weights z that steps change and their running average x,
which is evaluated and saved (Defazio et al. 2024, arXiv 2405.15682). Between two milestones the
model holds y, at a milestone x. y is computed from x and z after every milestone, so that
evaluations and checkpoints change nothing, and a momentum that a controller sets holds from then
on.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

KINDS: Mapping[str, str] = {
    "schedulefree_sgd": "SGDScheduleFree",
    "schedulefree_adamw": "AdamWScheduleFree",
}
RUNNING = ("k", "lr_max", "scheduled_lr", "train_mode", "weight_sum")
"""What these optimizers keep in `param_groups` that is state, not a setting."""

MOST = 8  # batches whose statistics those of batch normalisation are
SAMPLES = 512  # no more batches than it takes to have so many


def kind_of(name: str) -> Callable[..., Optimizer]:
    """The class of an optimizer of `KINDS`."""
    kind: Callable[..., Optimizer] = getattr(importlib.import_module("schedulefree"), KINDS[name])
    return kind


def check(name: str, momentum: float) -> None:
    """Raise a ValueError for a momentum (or first beta) of 0, by which these optimizers divide."""
    if not momentum > 0:
        raise ValueError(f"the momentum of {name} must be greater than 0, got {momentum}")


class Averages:
    """Switches a model between the weights that are trained and their averages.

    The running statistics of batch normalisation belong to the weights that were trained. Those of
    the averages are measured on the last 8 batches (with microbatches, on the last 8 of these), or
    on fewer that have 512 samples together.

    Args:
        forward: passes a batch's input through the model.
    """

    def __init__(self, model: nn.Module, forward: Callable[[Tensor], object]) -> None:
        kind = nn.modules.batchnorm._BatchNorm
        found = (m for m in model.modules() if isinstance(m, kind) and m.track_running_stats)
        self._norms = list(found)
        self._forward = forward
        self._recent: deque[Tensor] = deque(maxlen=MOST)

    def keep(self, x: Tensor) -> None:
        """Keep the input of a forward pass in training, a batch or a microbatch."""
        if self._norms:
            self._recent.append(x)
            while sum(map(len, self._recent)) - len(self._recent[0]) >= SAMPLES:
                self._recent.popleft()

    def train(self, optimizer: Any) -> None:
        """Before steps: the model holds the weights that are trained."""
        optimizer.train()

    @torch.no_grad()
    def settle(self, optimizer: Any) -> None:
        """After steps: the model holds the averages, with their statistics."""
        optimizer.eval()
        if not self._recent:
            return
        momenta = [norm.momentum for norm in self._norms]
        for count, x in enumerate(self._recent, 1):
            for norm in self._norms:
                norm.momentum = 1 / count  # the mean over all passes; None would wait for a device
            self._forward(x)
        for norm, momentum in zip(self._norms, momenta, strict=True):
            norm.momentum = momentum
        self._recent.clear()
