"""Batches from a folder of images by classes, with or without `train/` and `val/` (`image_files`).

Images are decoded ahead by `DataLoader` workers, as schedules determine the next batches and their
image sizes. The crop of an image depends on the seed, the epoch and the image only; it is resized
to the size of its batch when it is decoded. Batches do not depend on `trainers.data.loader` and
`trainers.data.cache`: only seconds and memory do.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainers.data import cache
from trainers.data.copies import Copies
from trainers.data.image_files import Files, check_classes, parts
from trainers.data.images import data_folder
from trainers.data.loader import loaded
from trainers.data.picture import Size, Source, shrunk
from trainers.data.stream import EVALUATED, Batch, blank, generator, passes, spans
from trainers.parallel.ranks import Ranks
from trainers.settings import Settings

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
CENTRAL = 0.875  # of the shorter side: what validation sees of an image
DRAFT = 2.0  # pixels a side that are decoded for each that is needed, at least
Box = tuple[float, float, float, float]
StepAt = Callable[[int], tuple[int, int]]
Key = tuple[int, int, int]


def random_box(width: int, height: int, random: np.random.Generator) -> Box:
    """A crop of 8 to 100 % of the area and an aspect of 3/4 to 4/3 (Szegedy et al. 2014)."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            left, top = random.uniform(0, width - w), random.uniform(0, height - h)
            return left, top, left + w, top + h
    return central_box(width, height)


def central_box(width: int, height: int, share: float = CENTRAL) -> Box:
    """The central square of a share of the shorter side."""
    side = min(width, height) * share
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


class Pictures(Dataset[tuple[Tensor, int]]):
    """Decoded images by (epoch, index, size): uint8 (3, size, size) and the label."""

    def __init__(self, files: Files, augment: frozenset[str], seed: int) -> None:
        self.classes, self.paths, self.labels = files.classes, files.paths, files.labels
        self._augment = augment
        self._seed = seed
        self.opened_by(cache.source("none", None, 0.0, files.paths), 0)

    def opened_by(self, source: Source, first: int) -> None:
        """Open images by `source`, for which they have the numbers from `first` on."""
        self._source, self._first = source, first

    def keep(self, size: int | None, name: str) -> None:
        """Keep `size` images, evenly spaced, so that classes keep their shares."""
        there = len(self.paths)
        if size is None:
            return
        if size > there:
            raise ValueError(f"{name} must be at most {there}, all that there is, got {size}")
        chosen = Files(self.classes, self.paths, self.labels).some(
            [i * there // size for i in range(size)]
        )
        self.paths, self.labels = chosen.paths, chosen.labels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: Key) -> tuple[Tensor, int]:
        epoch, index, size = key
        random = np.random.default_rng((self._seed, epoch, index))
        crop = random_box if "crop" in self._augment else lambda w, h, _: central_box(w, h)
        try:
            picture = self._source(self._first + index, self.paths[index])
            box = crop(*picture.size, random)
            pixels = boxed(
                picture.at_least(least(picture.size, box, size)), picture.size, box, size
            )
        except (OSError, SyntaxError) as error:  # most decoders do not say of which file
            raise ValueError(f"{self.paths[index]} cannot be read as an image: {error}") from None
        if "flip" in self._augment and random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), self.labels[index]


def decoded(file: Image.Image, box: Box, size: int, mode: str = "RGB") -> NDArray[np.uint8]:
    """The pixels (size, size) of a box of an image, as training and the classifier make them."""
    full = file.size
    return boxed(shrunk(file, least(full, box, size), mode), full, box, size)


def least(full: Size, box: Box, size: int) -> Size:
    """The pixels that an image must be decoded with for a box of it, of all its `full` ones.

    At least twice as many as needed a side: the resizing averages them.
    """
    left, top, right, bottom = box
    needed = DRAFT * size
    return (
        math.ceil(needed * full[0] / (right - left)),
        math.ceil(needed * full[1] / (bottom - top)),
    )


def boxed(image: Image.Image, full: Size, box: Box, size: int) -> NDArray[np.uint8]:
    """The pixels (size, size) of a box of an image that may have fewer pixels than its file.

    Args:
        full: the pixels of the file, which the box refers to.
    """
    left, top, right, bottom = box
    across, down = image.width / full[0], image.height / full[1]
    box = (left * across, top * down, right * across, bottom * down)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


class _Plan:
    """The keys of this rank's batches after `start`: samples seen, first batch and image size.

    `planned` are the batches that are being loaded.
    """

    def __init__(self, count: int, seed: int, ranks: Ranks, step_at: StepAt) -> None:
        self.start = 0, 0, 0
        self.planned: deque[tuple[int, int, int]] = deque()
        self._count, self._seed, self._ranks = count, seed, ranks
        self._step_at = step_at

    def __iter__(self) -> Iterator[list[Key]]:
        seen, batch_size, size = self.start
        orders: dict[int, Tensor] = {}
        while True:
            keys: list[Key] = []
            for epoch, low, high in spans(*self._ranks.share(seen, seen + batch_size), self._count):
                if epoch not in orders:
                    order = torch.randperm(self._count, generator=generator(self._seed, epoch))
                    orders = {e: o for e, o in orders.items() if e == epoch - 1} | {epoch: order}
                keys += [(epoch, i, size) for i in orders[epoch][low:high].tolist()]
            self.planned.append((seen, batch_size, size))
            yield keys
            seen += batch_size
            batch_size, size = self._step_at(seen)


class FolderStream:
    """Batches that `workers` processes of this rank decode ahead of time.

    Args:
        step_at: batch size and image size of the step after a number of samples.
        files: to train and to validate on; None: as the folder is divided.
    """

    def __init__(
        self,
        settings: Settings,
        ranks: Ranks,
        step_at: StepAt,
        files: tuple[Files, Files] | None = None,
    ) -> None:
        seed = settings.training.seed
        files = files or parts(data_folder(settings.data_dir), settings.val_share)
        check_classes(*files)
        train = Pictures(files[0], settings.augment, seed)
        self._val = Pictures(files[1], frozenset(), seed)
        train.keep(settings.train_size, "train_size")
        self._val.keep(settings.val_size, "val_size")
        self._open(settings, train, ranks)
        self.classes = len(train.classes)
        self.shape = (3, settings.full_size, settings.full_size)
        self.train_size = len(train)
        self.waited = 0.0
        self._ranks = ranks
        self._val_size = settings.val_image_size
        self._loading = settings.loader_workers, settings.prefetch_factor
        self._plan = _Plan(self.train_size, seed, ranks, step_at)
        self._step_at = step_at
        self._loader = self._load(train, self._plan)
        self._val_loader = self._load(self._val, self._validated())
        self._kept: tuple[Key, Batch] | None = None
        self._batches: Iterator[list[Tensor]] = iter(())
        self._scale = [
            torch.tensor(v, dtype=torch.float32, device=ranks.device).view(1, 3, 1, 1)
            for v in (MEAN, STD)
        ]

    def _open(self, settings: Settings, train: Pictures, ranks: Ranks) -> None:
        """Have both parts keep what they are to keep; copies to a disk are made now."""
        paths = [*train.paths, *self._val.paths]
        level, folder = settings.cache, settings.cache_dir
        source = cache.source(level, folder, settings.cache_gb, paths)
        train.opened_by(source, 0)
        self._val.opened_by(source, len(train))
        if isinstance(source, Copies):
            source.fill(*ranks.share(0, len(paths)))

    def _load(self, pictures: Pictures, batches: Iterable[list[Key]]) -> DataLoader[Any]:
        return loaded(pictures, batches, *self._loading, self._ranks.device.type == "cuda")

    def take(self, seen: int, batch_size: int, size: int) -> Batch:
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == (seen, batch_size, size):
            return kept[1]
        begun = time.perf_counter()
        planned = self._plan.planned
        if not planned or planned[0] != (seen, batch_size, size):
            planned.clear()
            self._plan.start = seen, batch_size, size
            self._batches = iter(self._loader)
        x, y = next(self._batches)
        planned.popleft()
        self.waited += time.perf_counter() - begun
        return self._on_device(x, y)

    def warm(self, seen: int, batch_size: int, size: int) -> Batch:
        """The next batch, which `take` then gives again; blank images of any other shape."""
        if self._step_at(seen) != (batch_size, size):
            start, stop = self._ranks.share(seen, seen + batch_size)
            return blank(stop - start, 3, size, self._ranks.device)
        batch = self.take(seen, batch_size, size)
        self._kept = (seen, batch_size, size), batch
        return batch

    def _on_device(self, x: Tensor, y: Tensor) -> Batch:
        mean, std = self._scale
        x = x.to(self._ranks.device, non_blocking=True).to(torch.float32)
        return x.sub_(mean).div_(std), y.to(self._ranks.device, non_blocking=True)

    def dummy(self, count: int) -> Batch:
        return blank(count, 3, self._val_size, self._ranks.device)

    def validation(self) -> Iterator[Batch]:
        for x, y in self._val_loader:
            yield self._on_device(x, y)

    def _validated(self) -> list[list[Key]]:
        """The keys of this rank's batches of an evaluation."""
        start, stop = self._ranks.share(0, len(self._val))
        return [
            [(0, i, self._val_size) for i in range(low, min(low + EVALUATED, stop))]
            for low in range(start, stop, EVALUATED)
        ]

    def evaluated(self) -> tuple[int, ...]:
        start, stop = self._ranks.share(0, len(self._val))
        return passes(stop - start, EVALUATED)

    def close(self) -> None:
        """Stop the workers."""
        self._batches = iter(())
        self._kept = None
        self._loader._iterator = self._val_loader._iterator = None
