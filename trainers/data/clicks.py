"""Clicks in memory: batches of them, and a generator whose truth is known.

The generator draws categories with frequencies of a power law, and clicks from a logistic model of
them. The AUC of that model's own probabilities is the best that any model can reach on average: it
is known (`best_auc`), so that a target can be set below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from trainers.auc import auc
from trainers.data.stream import generator, spans
from trainers.models.clicks import Batch, joined
from trainers.parallel.ranks import Ranks

FEATURES, NUMBERS = 6, 4  # categories and numbers of a generated sample
_FACTORS = 3


class Clickstream(Protocol):
    """A rank's batches. Categories are rows of one table, in which each feature has its part.

    `train_size` is the number of samples of an epoch, `rows` that of the table, and `waited` the
    seconds that `take` has waited for input.
    """

    features: int
    numbers: int
    rows: int
    train_size: int
    waited: float
    validation: Batch

    def take(self, seen: int, batch_size: int) -> Batch:
        """This rank's share of the global batch that follows `seen` samples."""
        ...

    def state(self) -> dict[str, list[int]]:
        """What a checkpoint needs beside the number of samples seen."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Generated:
    """Samples of the generator, with the probability of a click of those that validate.

    Args:
        best: the log odds of the true model for the samples of `val`.
    """

    train: Batch
    val: Batch
    best: Tensor


def generate(train_size: int, val_size: int, hash_size: int, seed: int = 0) -> Generated:
    """Samples of a logistic model of 6 categories, with so many values each, and 4 numbers.

    The k-th frequent value of a feature has a frequency in proportion to 1 / (k + 10). The log odds
    are a constant, a weight for each value, products of latent factors of neighbouring features,
    and the numbers' weights.

    Args:
        seed: of the truth and of the samples; not that of a training.
    """
    random = generator(seed, 0)
    count = train_size + val_size
    frequency = 1.0 / (torch.arange(hash_size) + 10.0)
    drawn = torch.multinomial(frequency, count * FEATURES, replacement=True, generator=random)
    values = drawn.view(count, FEATURES)
    dense = torch.randn((count, NUMBERS), generator=random)
    weights = torch.randn((FEATURES, hash_size), generator=random) * 0.7
    factors = torch.randn((FEATURES, hash_size, _FACTORS), generator=random) * 0.45
    slopes = torch.tensor([0.5, -0.4, 0.3, 0.0])
    every = torch.arange(FEATURES)
    found = factors[every, values]
    pairs = (found[:, :-1] * found[:, 1:]).sum((1, 2))
    odds = weights[every, values].sum(1) + pairs + dense @ slopes - 1.0
    clicks = torch.bernoulli(odds.sigmoid(), generator=random)
    whole = Batch(values + every * hash_size, dense, clicks)
    train, val = slice(0, train_size), slice(train_size, count)
    return Generated(whole.part(train), whole.part(val), odds[val])


def best_auc(train_size: int, val_size: int, hash_size: int, seed: int = 0) -> float:
    """The AUC of the true probabilities on the samples that validate."""
    made = generate(train_size, val_size, hash_size, seed)
    return auc(made.best, made.val.clicks)


class InMemory:
    """`Clickstream` of samples in memory, in an order that depends on seed and epoch only."""

    waited = 0.0

    def __init__(self, train: Batch, val: Batch, rows: int, seed: int, ranks: Ranks) -> None:
        self.features, self.numbers = train.categories.shape[1], train.dense.shape[1]
        self.rows = rows
        self.train_size = len(train)
        self.validation = val
        self._train = train
        self._ranks = ranks
        self._order = lru_cache(maxsize=2)(lambda epoch: self._drawn(seed, epoch))

    def _drawn(self, seed: int, epoch: int) -> Tensor:
        return torch.randperm(self.train_size, generator=generator(seed, epoch))

    def take(self, seen: int, batch_size: int) -> Batch:
        start, stop = self._ranks.share(seen, seen + batch_size)
        parts = [
            self._train.part(self._order(epoch)[low:high])
            for epoch, low, high in spans(start, stop, self.train_size)
        ]
        return joined(parts)

    def state(self) -> dict[str, list[int]]:
        return {}

    def close(self) -> None:
        self._order.cache_clear()
