"""Distillation: a trained model, the teacher, says how likely each class is for each image.

The loss is (1 - a) CE + a T^2 KL: the usual cross-entropy, and the divergence of the student's
probabilities from the teacher's, both at the temperature T (Hinton et al. 2015, arXiv 1503.02531).
The teacher is a file that autotune has written of a study's best model, `best_model.pt`, or a
registered model that has this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.compression.registered import local
from trainers.readers import NotAllowedError, Number, optional, text
from trainers.technique import Knob, When


def _share(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise NotAllowedError("a number from 0 to 1")
    return value


_TAUGHT = When("teacher, a file", lambda own: own["teacher"] is not None)
KNOBS: Mapping[str, Knob] = {
    "teacher": Knob(None, optional(text), "both"),
    "distill_weight": Knob(0.9, _share, "statistical", _TAUGHT, memory=False),
    "distill_temperature": Knob(
        4.0, Number(0.0, open_low=True), "statistical", _TAUGHT, memory=False
    ),
}


@dataclass(frozen=True)
class Teacher:
    """A trained model, in evaluation mode, and how much of the loss follows it.

    Args:
        weight: a, from 0 to 1.
        temperature: T, more than 0.
    """

    model: nn.Module
    weight: float
    temperature: float

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """The scores of classes for images (N, channels, height, width): (N, classes)."""
        found: Tensor = self.model(x)
        return found.float()

    def loss(self, out: Tensor, y: Tensor, scores: Tensor, smoothing: float, how: str) -> Tensor:
        """The loss of a student's scores, as `F.cross_entropy`: (1 - a) CE + a T^2 KL.

        Args:
            out: of the student, (N, classes).
            y: labels (N,).
            scores: the teacher's, (N, classes).
            smoothing: of the labels.
            how: "mean" over the batch, or "sum".
        """
        own = F.cross_entropy(out, y, label_smoothing=smoothing, reduction=how)
        student = F.log_softmax(out.float() / self.temperature, 1)
        teacher = F.log_softmax(scores / self.temperature, 1)
        apart = F.kl_div(student, teacher, reduction="sum", log_target=True)
        apart = apart / max(len(y), 1) if how == "mean" else apart
        return (1 - self.weight) * own + self.weight * self.temperature**2 * apart


def require_file(teacher: str | None) -> None:
    """Raise a ValueError, one line, where the file of the teacher is not there."""
    if teacher is not None:
        with local(teacher):
            pass
