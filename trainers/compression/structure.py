"""Hidden channels of a model: which parameters they have, and the model without some of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from trainers.models.images import Block


@dataclass(frozen=True)
class Group:
    """The channels of one hidden layer.

    Args:
        weight: the parameter that has a row for each channel; its norm says how large one is.
        beside: other parameters with an entry for each; where all are 0, so is the channel.
        statistics: buffers with an entry for each.
        into: the parameter of the next layer that has a column for each.
    """

    weight: str
    beside: tuple[str, ...]
    statistics: tuple[str, ...]
    into: str


def groups_of(model: nn.Module) -> list[Group]:
    """The hidden units of a perceptron, or the inner channels of residual blocks."""
    blocks = [(name, block) for name, block in model.named_modules() if isinstance(block, Block)]
    if blocks:
        return [group for name, block in blocks for group in _inner(f"{name}.body.", block)]
    layers = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    return [
        Group(f"{one}.weight", (f"{one}.bias",), (), f"{other}.weight")
        for one, other in pairwise(layers)
    ]


def _inner(prefix: str, block: Block) -> Iterator[Group]:
    convs = [i for i, part in enumerate(block.body) if isinstance(part, nn.Conv2d)]
    for at, following in pairwise(convs):
        norm = f"{prefix}{at + 1}."
        yield Group(
            f"{prefix}{at}.weight",
            (f"{norm}weight", f"{norm}bias"),
            (f"{norm}running_mean", f"{norm}running_var"),
            f"{prefix}{following}.weight",
        )


def without_masked(
    weights: Mapping[str, Tensor], groups: Sequence[Group], masks: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The weights of the model without the channels that are masked."""
    found = dict(weights)
    for group in groups:
        kept = masks[group.weight].flatten().nonzero().flatten().to(found[group.weight].device)
        for name in (group.weight, *group.beside, *group.statistics):
            found[name] = found[name].index_select(0, kept)
        found[group.into] = found[group.into].index_select(1, kept)
    return found


def fit(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model, with layers as wide as these weights are, and the weights loaded.

    Raises:
        RuntimeError: they are not of such a model.
    """
    for name, part in model.named_modules():
        weight = weights.get(f"{name}.weight")
        if weight is None or weight.shape == part.weight.shape:
            continue
        if isinstance(part, nn.Linear) and weight.dim() == 2:
            part.out_features, part.in_features = weight.shape
        elif isinstance(part, nn.Conv2d) and weight.dim() == 4 and part.groups == 1:
            part.out_channels, part.in_channels = weight.shape[:2]
        elif isinstance(part, nn.BatchNorm2d) and weight.dim() == 1:
            part.num_features = len(weight)
            for key in ("running_mean", "running_var"):
                setattr(part, key, torch.empty_like(weight))
        else:
            continue
        part.weight = nn.Parameter(torch.empty_like(weight))
        if part.bias is not None:
            part.bias = nn.Parameter(torch.empty(len(weight)))
    model.load_state_dict(dict(weights))
    return model
