"""Blank data with the shapes and the size of a data set that is not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from trainers.data.images import KNOWN, Known, data_folder
from trainers.data.stream import EVALUATED, EVALUATED_PIXELS, blank
from trainers.memory.stand_ins import CPU, Blank
from trainers.parallel.ranks import Ranks

if TYPE_CHECKING:
    from trainers.data.text import TextStream
    from trainers.settings import Settings
    from trainers.task import StepAt

Shape = tuple[int, int, int]


class Described(NamedTuple):
    """What `Task.model` reads of a stream of images, and how many of how many bytes are kept."""

    classes: int
    shape: Shape
    train: int
    val: int
    item_bytes: int


def images(settings: Settings, ranks: int) -> Blank:
    """Stands for the images of a configuration.

    Raises:
        FileNotFoundError: there is no folder of images; one line.
    """
    found = _described(settings)
    side = settings.val_image_size
    most = EVALUATED
    if torch.cuda.is_available() and settings.data != "folder":
        most = max(EVALUATED, EVALUATED_PIXELS // side**2)
    channels = found.shape[0]
    return Blank(
        stream=found,
        batch=lambda count, size: blank(count, channels, size, CPU),
        evaluated=max(1, min(most, -(-found.val // ranks))),
        evaluated_size=side,
        kept=(found.train + found.val) * found.item_bytes,
    )


def texts(opened: Callable[[StepAt, Ranks], TextStream], length: int, ranks: int) -> Blank:
    """Stands for a text, which is read: its length and vocabulary are not known otherwise.

    Args:
        opened: the stream of a rank's part.
        length: of a sequence when evaluating, in tokens.
    """
    stream = opened(lambda _: (0, 0), Ranks(0, ranks, CPU))
    return Blank(
        stream,
        lambda count, size: 2 * (torch.zeros((count, size), dtype=torch.int64),),
        max(stream.evaluated(), default=1),  # the first rank may have none, where others have one
        length,
        stream.kept,
    )


def _described(settings: Settings) -> Described:
    full = settings.full_size
    if settings.data == "folder":
        root = data_folder(settings.data_dir)
        inside = root / "train" if (root / "train").is_dir() else root
        classes = sum(f.is_dir() and f.name[0] not in "._" for f in inside.iterdir())
        return Described(classes, (3, full, full), 0, settings.val_size or EVALUATED, 0)
    known = {**KNOWN, "synthetic": Known(full, 3, 4096, 1024, 4)}
    side, channels, train, val, each = known[settings.data]
    train, val = settings.train_size or train, settings.val_size or val
    return Described(10, (channels, side, side), train, val, channels * side * side * each)
