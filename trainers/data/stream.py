"""The order of training samples, and batches of a data set on the device.

Training samples are one stream: epoch after epoch, each in an order that depends on the seed and
the epoch only. A batch is the next part of the stream (it may extend into the next epoch), and each
rank takes its share. The next batch is thus a function of the seed and the number of samples seen,
which a checkpoint stores, and the order does not depend on the number of ranks or the batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trainers.data.augment import cut, draw, moved, resized
from trainers.data.images import Images
from trainers.parallel.ranks import Ranks

Batch = tuple[Tensor, Tensor]
EVALUATED = 512  # images in a forward pass of an evaluation
EVALUATED_PIXELS = 2**21  # and on a GPU as many pixels, where that is more
NO_LABEL = -100  # the label of padding in the last sequence of an evaluation


class Stream(Protocol):
    """A rank's batches for training and validation.

    A batch has items of one size: images with so many pixels a side, or sequences with so many
    tokens. `train_size` is the number of samples (images, tokens) of an epoch, and `waited` the
    seconds that `take` has spent waiting for input so far.
    """

    train_size: int

    @property
    def waited(self) -> float: ...

    def take(self, seen: int, batch_size: int, size: int) -> Batch:
        """This rank's share of the global batch that follows `seen` samples."""
        ...

    def warm(self, seen: int, batch_size: int, size: int) -> Batch:
        """What `take` gives, for a warm-up; blank where real items would take long to make."""
        ...

    def dummy(self, count: int) -> Batch:
        """`count` items as `validation` gives them, for a warm-up."""
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


@dataclass(frozen=True)
class _Epoch:
    """The order of an epoch's samples and their random numbers, on the device.

    `images` and `labels` are those of the whole epoch in that order, where they are made at once.
    """

    order: Tensor
    drawn: Tensor
    images: Tensor | None = None
    labels: Tensor | None = None


class MemoryStream:
    """Batches of images on the device: no copies from the host.

    Args:
        val_image_size: pixels of a side when evaluating; by default those of the images.
        whole_epochs: shift and mirror an epoch's images at once, and draw the next one's random
            numbers on a thread beside training; by default on a GPU, where each kernel of a step
            costs more than it computes. The batches are the same.
    """

    waited = 0.0

    def __init__(
        self,
        images: Images,
        augment: frozenset[str],
        seed: int,
        ranks: Ranks,
        val_image_size: int | None = None,
        whole_epochs: bool | None = None,
    ) -> None:
        self.classes = images.classes
        self.shape = images.shape
        self.train_size = len(images.train_y)
        self._val_size = val_image_size or self.shape[1]
        self._images = images
        self._augment = augment
        self._seed = seed
        self._ranks = ranks
        on_gpu = ranks.device.type == "cuda"
        self._most = max(EVALUATED, EVALUATED_PIXELS // self._val_size**2) if on_gpu else EVALUATED
        whole = on_gpu if whole_epochs is None else whole_epochs
        self._thread = ThreadPoolExecutor(1, "autotune-order") if whole else None
        self._next: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None
        self._epoch = lru_cache(maxsize=2)(self._prepared)

    def _prepared(self, epoch: int) -> _Epoch:
        found = self._next
        drawn = found[1].result() if found and found[0] == epoch else self._drawn(epoch)
        device = self._ranks.device
        order, numbers = (part.to(device, non_blocking=True) for part in drawn)
        if self._thread is None:
            return _Epoch(order, numbers)
        self._next = epoch + 1, self._thread.submit(self._drawn, epoch + 1)
        images = moved(self._images.train, order, numbers, self._augment)
        return _Epoch(order, numbers, images, self._images.train_y.index_select(0, order))

    def _drawn(self, epoch: int) -> tuple[Tensor, Tensor]:
        random = generator(self._seed, epoch)
        order = torch.randperm(self.train_size, generator=random)
        numbers = order.new_empty((5, 0))
        if self._augment:
            numbers = draw(self.train_size, self.shape, random)
        if self._ranks.device.type == "cuda":  # else the copy would wait for the device
            return order.pin_memory(), numbers.pin_memory()
        return order, numbers

    def take(self, seen: int, batch_size: int, size: int | None = None) -> Batch:
        start, stop = self._ranks.share(seen, seen + batch_size)
        parts = [self._part(*span) for span in spans(start, stop, self.train_size)]
        x, y, drawn = parts[0] if len(parts) == 1 else _joined(parts)
        x = self._images.normalised(x)
        if "cutout" in self._augment:
            x = cut(x, drawn)
        return x if size is None else resized(x, size), y

    warm = take

    def _part(self, epoch: int, low: int, high: int) -> tuple[Tensor, Tensor, Tensor]:
        """Images as they are kept, labels and random numbers of a part of an epoch."""
        found, part = self._epoch(epoch), slice(low, high)
        drawn = found.drawn[:, part]
        if found.images is not None and found.labels is not None:
            return found.images[part], found.labels[part], drawn
        index = found.order[part]
        x = moved(self._images.train, index, drawn, self._augment)
        return x, self._images.train_y.index_select(0, index), drawn

    def dummy(self, count: int) -> Batch:
        return self._validated(0, count)

    def validation(self, size: int | None = None) -> Iterator[Batch]:
        start, stop = self._ranks.share(0, len(self._images.val_y))
        size = size or self._most
        for low in range(start, stop, size):
            yield self._validated(low, min(low + size, stop))

    def _validated(self, low: int, high: int) -> Batch:
        images, part = self._images, slice(low, high)
        return resized(images.normalised(images.val[part]), self._val_size), images.val_y[part]

    def evaluated(self) -> tuple[int, ...]:
        start, stop = self._ranks.share(0, len(self._images.val_y))
        return passes(stop - start, self._most)

    def close(self) -> None:
        self._epoch.cache_clear()
        self._next = None
        if self._thread is not None:
            self._thread.shutdown()


def _joined(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    images, labels, drawn = zip(*parts, strict=True)
    return torch.cat(images), torch.cat(labels), torch.cat(drawn, 1)
