"""A network whose outputs are features of length 1, and the classes that they are trained with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.data.stream import NO_LABEL
from trainers.models.flops import per_image
from trainers.models.margins import among, margined, sampled
from trainers.parallel.classes import check, cross_entropy, everyone, rows_of
from trainers.parallel.ranks import Ranks
from trainers.readers import Schedule, greatest

_DRAWN = 2**14  # rows whose first values are drawn at once, on any number of ranks


class Margin(NamedTuple):
    """How features are compared with classes in training: `trainers.models.margins`.

    Args:
        kind: "none", "arcface" or "cosface".
        size: of the margin; in radians with "arcface".
        scale: of the cosines, also in evaluations.
    """

    kind: str = "none"
    size: float = 0.0
    scale: float = 64.0


class Classes(nn.Module):
    """The directions of this rank's classes, and the loss with those of all ranks.

    Args:
        count: of all classes.
        width: of the features.
        ranks: over which the classes are divided; each has samples of its own.
        rate: the share of its classes that a rank compares with in a step; those of the samples
            are always among them. At least as many are chosen as there are samples.
        seed: of the choice. How many choices were made belongs to the state, and no random one.

    Raises:
        ValueError: a rank would have no class; one line.
    """

    def __init__(
        self, count: int, width: int, ranks: Ranks, margin: Margin, rate: Schedule, seed: int
    ) -> None:
        super().__init__()
        check(count, ranks.size)
        self.count, self.ranks, self.margin = count, ranks, margin
        self.first, stop = rows_of(count, ranks.rank, ranks.size)
        self.weight = nn.Parameter(_initial(count, width, self.first, stop))
        self._rate, self._seed, self._choices = rate, seed, 0
        self._share = greatest(rate)  # until a progress is given: what needs most memory

    def at(self, progress: float) -> None:
        self._share = self._rate(progress)

    def loss(self, features: Tensor, labels: Tensor, smoothing: float, reduction: str) -> Tensor:
        """Of this rank's samples, as a part of that of all ranks'; collective.

        The gradient of `weight` is that of the sum over the ranks.

        Args:
            features: (samples, width) of length 1, with gradients.
            labels: int64 (samples,); `NO_LABEL` for none.
            smoothing: of labels, 0.
            reduction: "sum" or "mean".
        """
        assert smoothing == 0, "refused by the trainer"
        losses, _ = self._compared(features, labels, training=True)
        return losses.sum() if reduction == "sum" else losses.mean()

    def judged(self, features: Tensor, labels: Tensor) -> Tensor:
        """This rank's correct predictions, summed loss without a margin, samples; collective."""
        losses, right = self._compared(features, labels, training=False)
        known = labels != NO_LABEL
        counts = (right & known).sum(), losses.sum(), known.sum()
        return torch.stack([value.double() for value in counts])

    def _compared(self, features: Tensor, labels: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        """Of this rank's samples: losses, 0 without a label, and whether their class is nearest."""
        every, known = everyone(features, labels, self.ranks)
        here = (known >= self.first) & (known < self.first + len(self.weight))
        targets = torch.where(here, known - self.first, -1)
        weight: Tensor = self.weight
        if training:
            chosen = self._chosen(targets)
            if chosen is not None:
                weight, targets = weight.index_select(0, chosen), among(chosen, targets)
        cosines = F.linear(every, F.normalize(weight)).to(weight.dtype)
        if training:
            places = targets.clamp(min=0)[:, None]
            own = cosines.gather(1, places)
            less = margined(own, self.margin.kind, self.margin.size)
            less = torch.where(targets[:, None] < 0, own, less)
            cosines = cosines.scatter(1, places, less)
        losses, right = cross_entropy(self.margin.scale * cosines, targets, self.ranks)
        begin = self.ranks.rank * (len(known) // self.ranks.size)
        own_part = slice(begin, begin + len(labels))
        return torch.where(labels == NO_LABEL, 0.0, losses[own_part]), right[own_part]

    def _chosen(self, targets: Tensor) -> Tensor | None:
        """The rows that this step compares with; None: all."""
        if self._share >= 1:
            return None
        seeds = np.random.SeedSequence((self._seed, self.ranks.rank, self._choices))
        random = torch.Generator(targets.device)
        random.manual_seed(int(seeds.generate_state(1, np.uint64)[0]) >> 1)
        self._choices += 1
        rows = len(self.weight)
        return sampled(targets, rows, math.ceil(self._share * rows), random)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self._choices)

    def set_extra_state(self, state: Tensor) -> None:
        self._choices = int(state)


def _initial(count: int, width: int, first: int, stop: int) -> Tensor:
    """Rows of about length 1, of torch's global generator; those of others are not kept."""
    found = torch.empty(stop - first, width)
    for begin in range(0, count, _DRAWN):
        drawn = torch.randn(min(_DRAWN, count - begin), width) / math.sqrt(width)
        low, high = max(begin, first), min(begin + len(drawn), stop)
        if low < high:
            found[low - first : high - first] = drawn[low - begin : high - begin]
    return found


class Normalised(nn.Module):
    """Features of length 1, in single precision at least."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x if x.dtype == torch.float64 else x.float())


class Recognition(nn.Module):
    """A network for features, and the classes of this rank.

    Args:
        backbone: its outputs have length 1 (`Normalised`); all ranks have a copy.
        classes: its `loss` and `judged` are what outputs and labels are compared by.
    """

    def __init__(self, backbone: nn.Module, classes: Classes) -> None:
        super().__init__()
        self.backbone = backbone
        self.classes = classes

    @property
    def criterion(self) -> Classes:
        return self.classes

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.backbone(x)
        return found

    def units(self) -> Sequence[nn.Module]:
        """Those of the backbone."""
        backbone: Any = self.backbone
        found: Sequence[nn.Module] = backbone.units()
        return found

    def flops(self, size: int) -> float:
        """Of training on one image of so many pixels a side, compared with all classes."""
        weight = self.classes.weight
        return per_image(self.backbone, size) + 6.0 * self.classes.count * weight.shape[1]
