"""What a trained model is outside its training: its weights, from the checkpoint of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

EXAMPLES = 2  # in a batch; of one, the number of its items would be taken for fixed


def weights(states: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The parameters, and the running statistics as their means over the ranks.

    Every rank has statistics of its own while it trains; evaluations take their means, too.

    >>> states = [{"learner": {"model": {"mean": torch.tensor([x])}}} for x in (1.0, 3.0)]
    >>> weights(states)
    {'mean': tensor([2.])}

    Raises:
        KeyError: states of another trainer.
    """
    first, *others = (state["learner"]["model"] for state in states)
    return {key: _mean([value, *(other[key] for other in others)]) for key, value in first.items()}


def _mean(values: Sequence[Tensor]) -> Tensor:
    """Their mean; what is the same on all ranks, or counts, is taken as it is."""
    if not values[0].is_floating_point() or all(torch.equal(values[0], v) for v in values[1:]):
        return values[0]
    return torch.stack([*values]).sum(0) / len(values)


def outer(found: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The weights of the first layer and of the last; what normalises has vectors only."""
    matrices = [value for value in found.values() if value.dim() > 1]
    return matrices[0], matrices[-1]
