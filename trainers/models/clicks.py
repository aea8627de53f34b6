"""Models of click-through: embeddings of categories and a small dense part give one logit.

The embeddings come from outside, as their table is sharded over the ranks: a model gets those of a
batch's features, (N, features, columns), and the dense features (N, numbers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Clicks(Protocol):
    """A model; `columns` is the width of the table's rows."""

    columns: int

    def __call__(self, embedded: Tensor, dense: Tensor) -> Tensor:
        """The logits (N,)."""
        ...


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class WideDeep(nn.Module):
    """Wide and deep: a weight for each category, and a perceptron of all embeddings.

    The last column of a row is the category's weight. Cheng et al. 2016, arXiv 1606.07792.

    Args:
        features: categories of a sample.
        numbers: dense features of a sample.
        width: of an embedding.
        hidden: units of the perceptron.
    """

    def __init__(self, features: int, numbers: int, width: int, hidden: int) -> None:
        super().__init__()
        self.columns = width + 1
        self.deep = perceptron(features * width + numbers, hidden, 1)
        self.wide = nn.Linear(numbers, 1)

    def forward(self, embedded: Tensor, dense: Tensor) -> Tensor:
        deep = self.deep(torch.cat([embedded[..., :-1].flatten(1), dense], 1))
        logits: Tensor = (deep + self.wide(dense)).squeeze(1) + embedded[..., -1].sum(1)
        return logits


class DLRM(nn.Module):
    """DLRM: products of all pairs of embeddings and of one that a perceptron makes of the numbers.

    Naumov et al. 2019, arXiv 1906.00091. As in a wide and deep model, the last column of a row is a
    weight of the category alone; with the products that is a factorisation machine (Rendle 2010)
    and a perceptron of it.

    Args: as of `WideDeep`.
    """

    pairs: Tensor

    def __init__(self, features: int, numbers: int, width: int, hidden: int) -> None:
        super().__init__()
        self.columns = width + 1
        self.bottom = perceptron(numbers, hidden, width)
        count = features + 1
        self.register_buffer("pairs", torch.triu_indices(count, count, 1), persistent=False)
        self.top = perceptron(width + count * features // 2, hidden, 1)

    def forward(self, embedded: Tensor, dense: Tensor) -> Tensor:
        below = self.bottom(dense)
        vectors = torch.cat([below.unsqueeze(1), embedded[..., :-1]], 1)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        deep = self.top(torch.cat([below, products], 1)).squeeze(1)
        logits: Tensor = deep + products.sum(1) + embedded[..., -1].sum(1)
        return logits


MODELS: Mapping[str, Any] = {"dlrm": DLRM, "wide_deep": WideDeep}


@dataclass(frozen=True)
class Batch:
    """Samples on the host.

    Args:
        categories: (N, features) int64, rows of the table.
        dense: (N, numbers) float32.
        clicks: (N,) float32, 1 for a click.
    """

    categories: Tensor
    dense: Tensor
    clicks: Tensor

    def __len__(self) -> int:
        return len(self.clicks)

    def part(self, index: slice | Tensor) -> Batch:
        return Batch(self.categories[index], self.dense[index], self.clicks[index])


def joined(batches: list[Batch]) -> Batch:
    """All samples of some batches, in order."""
    if len(batches) == 1:
        return batches[0]
    return Batch(
        torch.cat([b.categories for b in batches]),
        torch.cat([b.dense for b in batches]),
        torch.cat([b.clicks for b in batches]),
    )
