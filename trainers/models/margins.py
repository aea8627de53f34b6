"""Margins of a softmax over cosines, and the classes that a step compares with.

A class is a direction, and the score of a sample its cosine with it times a scale. A margin makes
the score of a sample's own class less in training, so that classes are further apart than they need
to be for telling them from each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

USUAL: Mapping[str, float] = {"none": 0.0, "arcface": 0.5, "cosface": 0.35}
"""The sizes of the papers, by the kind of the margin."""

_LEAST = 1e-6  # of the square of a sine, whose derivative has no bound


def margined(cosines: Tensor, kind: str, size: float) -> Tensor:
    """The cosines of samples with their own classes, less a margin.

    Args:
        kind: "none"; "cosface": cos - size; "arcface": cos(angle + size), and where this angle is
            beyond pi, where it would grow again, cos - size sin(size).
        size: of the margin, in radians for "arcface".

    With a size of 0 nothing changes. Wang et al. 2018, arXiv 1801.09414; Deng et al. 2019, arXiv
    1801.07698.

    >>> margined(torch.tensor([1.0, 0.0]), "cosface", 0.25)
    tensor([ 0.7500, -0.2500])
    """
    if kind == "none":
        return cosines
    if kind == "cosface":
        return cosines - size
    sines = (1 - cosines.square()).clamp(min=_LEAST).sqrt()
    turned = cosines * math.cos(size) - sines * math.sin(size)
    return torch.where(cosines > -math.cos(size), turned, cosines - size * math.sin(size))


def sampled(
    targets: Tensor, rows: int, count: int, random: torch.Generator | None = None
) -> Tensor | None:
    """The classes that a step compares with: those of its samples, and random others.

    No number is read from the device, so as many are chosen whatever the samples are.

    Args:
        targets: (samples,), the row of each sample's class; -1 where it is none of these.
        rows: of all classes.
        count: of the chosen ones, as long as there are no more samples.
        random: on the device of the targets.

    Returns:
        their rows in rising order; None: all.

    >>> sampled(torch.tensor([5, -1, 2, 5]), 6, 2, torch.Generator().manual_seed(0))
    tensor([0, 2, 3, 5])
    """
    count = min(rows, max(count, len(targets)))
    if count == rows:
        return None
    order = torch.rand(rows + 1, generator=random, device=targets.device)
    order.scatter_(0, torch.where(targets < 0, rows, targets), 2.0)
    return order[:rows].topk(count).indices.sort().values


def among(chosen: Tensor, targets: Tensor) -> Tensor:
    """The targets' places among the chosen rows, which have them all; -1 stays.

    >>> among(torch.tensor([0, 2, 5]), torch.tensor([5, -1, 2]))
    tensor([ 2, -1,  1])
    """
    return torch.where(targets < 0, targets, torch.searchsorted(chosen, targets.clamp(min=0)))
