"""The weights of a trained model, from the checkpoint of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

EXAMPLES = 2  # in a batch; with one, export would take the batch size as fixed


def weights(states: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The parameters, and the running statistics as their means over the ranks.

    Every rank has its own statistics during training; evaluations use their means, too.

    >>> states = [{"learner": {"model": {"mean": torch.tensor([x])}}} for x in (1.0, 3.0)]
    >>> weights(states)
    {'mean': tensor([2.])}

    Raises:
        KeyError: states of another trainer.
    """
    first, *others = (state["learner"]["model"] for state in states)
    return {key: _mean([value, *(other[key] for other in others)]) for key, value in first.items()}


def _mean(values: Sequence[Tensor]) -> Tensor:
    """Their mean; values that are equal on all ranks, and integers, are unchanged."""
    if not values[0].is_floating_point() or all(torch.equal(values[0], v) for v in values[1:]):
        return values[0]
    return torch.stack([*values]).sum(0) / len(values)


def outer(found: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The weights of the first and of the last layer; normalisation layers have vectors only."""
    matrices = [value for value in found.values() if value.dim() > 1]
    return matrices[0], matrices[-1]
