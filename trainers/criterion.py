"""What a model's outputs and the labels of its samples are compared by."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.data.stream import NO_LABEL


class Criterion(Protocol):
    """A comparison; a model that has another than `CrossEntropy` has it as its `criterion`."""

    def loss(self, out: Tensor, y: Tensor, smoothing: float, reduction: str) -> Tensor:
        """What is differentiated, a "sum" or a "mean" over the labels."""
        ...

    def judged(self, out: Tensor, y: Tensor) -> Tensor:
        """Correct predictions, summed loss, and samples without those of `NO_LABEL`: float64."""
        ...


class CrossEntropy:
    """Of the classes' scores, in the output's last dimension."""

    def loss(self, out: Tensor, y: Tensor, smoothing: float, reduction: str) -> Tensor:
        return F.cross_entropy(out, y, label_smoothing=smoothing, reduction=reduction)

    def judged(self, out: Tensor, y: Tensor) -> Tensor:
        right = (out.argmax(1) == y).sum()
        loss = F.cross_entropy(out.float(), y, ignore_index=NO_LABEL, reduction="sum")
        return torch.stack([right.double(), loss.double(), (y != NO_LABEL).sum().double()])


def criterion_of(model: nn.Module) -> Criterion:
    """The model's own, or cross-entropy."""
    found: Criterion | None = getattr(model, "criterion", None)
    return CrossEntropy() if found is None else found
