"""The order of training samples, and batches of a data set on the device.

Training samples are one stream: epoch after epoch, each in an order that depends on the seed and
the epoch only. A batch is the next part of the stream (it may extend into the next epoch), and each
rank takes its share. The next batch is thus a function of the seed and the number of samples seen,
which a checkpoint stores, and the order does not depend on the number of ranks or the batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trainers.augment import augmented, draw, resized
from trainers.data import Images
from trainers.distributed import Ranks

Batch = tuple[Tensor, Tensor]
EVALUATED = 512  # images in a forward pass of an evaluation
NO_LABEL = -100  # the label of padding in the last sequence of an evaluation


class Stream(Protocol):
    """A rank's batches for training and validation.

    A batch has items of one size: images with so many pixels a side, or sequences with so many
    tokens. `train_size` is the number of samples (images, tokens) of an epoch, and `waited` the
    seconds that `take` has spent waiting for input so far.
    """

    train_size: int
    waited: float

    def take(self, seen: int, batch_size: int, size: int) -> Batch:
        """This rank's share of the global batch that follows `seen` samples."""
        ...

    def dummy(self, count: int, size: int | None) -> Batch:
        """`count` items as `take` gives them, for a warm-up; size None: as `validation` does."""
        ...

    def validation(self) -> Iterator[Batch]:
        """This rank's share of the validation set."""
        ...

    def evaluated(self) -> tuple[int, ...]:
        """The different numbers of items in the batches of `validation`."""
        ...

    def close(self) -> None: ...


def passes(count: int, most: int | None) -> tuple[int, ...]:
    """The different numbers of items in forward passes of up to `most`, for `count` items.

    >>> passes(40, 16), passes(32, 16), passes(40, None), passes(0, 16)
    ((16, 8), (16,), (40,), ())
    """
    if most is None or count <= most:
        return (count,) if count else ()
    rest = count % most
    return (most, rest) if rest else (most,)


def blank(count: int, channels: int, size: int, device: torch.device) -> Batch:
    """Black images, all of class 0."""
    x = torch.zeros((count, channels, size, size), device=device)
    return x, torch.zeros(count, dtype=torch.int64, device=device)


def generator(seed: int, epoch: int) -> torch.Generator:
    """The random generator of an epoch, the same on every rank."""
    mixed = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) >> 1)


def spans(start: int, stop: int, count: int) -> list[tuple[int, int, int]]:
    """The part [start, stop) of the stream by epochs of `count`: (epoch, from, to) in each.

    >>> spans(8, 21, 10)
    [(0, 8, 10), (1, 0, 10), (2, 0, 1)]
    """
    found = []
    while start < stop:
        epoch, low = divmod(start, count)
        high = min(count, low + stop - start)
        found.append((epoch, low, high))
        start += high - low
    return found


class MemoryStream:
    """Batches of images on the device: one index per batch, no copies from the host."""

    waited = 0.0

    def __init__(
        self,
        images: Images,
        augment: frozenset[str],
        seed: int,
        ranks: Ranks,
        val_image_size: int | None = None,
    ) -> None:
        self.classes = images.classes
        self.shape = images.shape
        self.train_size = len(images.train_y)
        self._val_size = val_image_size or self.shape[1]
        self._images = images
        self._augment = augment
        self._seed = seed
        self._ranks = ranks
        self._epoch = lru_cache(maxsize=2)(self._drawn)

    def _drawn(self, epoch: int) -> tuple[Tensor, Tensor]:
        random = generator(self._seed, epoch)
        order = torch.randperm(self.train_size, generator=random).to(self._ranks.device)
        if not self._augment:
            return order, order.new_empty((5, 0))
        return order, draw(self.train_size, self.shape, random).to(self._ranks.device)

    def take(self, seen: int, batch_size: int, size: int | None = None) -> Batch:
        x, y = self._taken(seen, batch_size)
        return x if size is None else resized(x, size), y

    def _taken(self, seen: int, batch_size: int) -> Batch:
        start, stop = self._ranks.share(seen, seen + batch_size)
        orders, draws = [], []
        for epoch, low, high in spans(start, stop, self.train_size):
            order, drawn = self._epoch(epoch)
            orders.append(order[low:high])
            draws.append(drawn[:, low:high])
        index = orders[0] if len(orders) == 1 else torch.cat(orders)
        y = self._images.train_y.index_select(0, index)
        if not self._augment:
            return self._images.train_x.index_select(0, index), y
        drawn = draws[0] if len(draws) == 1 else torch.cat(draws, 1)
        return augmented(self._images.train_x, index, drawn, self._augment), y

    def dummy(self, count: int, size: int | None) -> Batch:
        return blank(count, self.shape[0], size or self._val_size, self._ranks.device)

    def validation(self, size: int = EVALUATED) -> Iterator[Batch]:
        start, stop = self._ranks.share(0, len(self._images.val_y))
        for low in range(start, stop, size):
            part = slice(low, min(low + size, stop))
            yield resized(self._images.val_x[part], self._val_size), self._images.val_y[part]

    def evaluated(self) -> tuple[int, ...]:
        start, stop = self._ranks.share(0, len(self._images.val_y))
        return passes(stop - start, EVALUATED)

    def close(self) -> None:
        self._epoch.cache_clear()
