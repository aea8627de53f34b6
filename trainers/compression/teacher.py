"""The teacher of a distillation, from the file of a trained model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from trainers import classifier
from trainers.compression.distill import Teacher, require_file


def read_teacher(
    path: str,
    channels: int,
    sizes: Iterable[int],
    classes: int,
    device: torch.device,
    weight: float,
    temperature: float,
) -> Teacher:
    """The teacher in a file, which is read as data only (`weights_only`).

    Args:
        channels: of the images.
        sizes: pixels of a side of the images that it is shown while the student trains.

    Raises:
        ValueError: the file holds no classifier of such images and classes; one line.
    """
    require_file(path)
    found = classifier.load(Path(path).expanduser())
    for what, own, needed in (
        ("classes", len(found.classes), classes),
        ("channels", found.channels, channels),
    ):
        if own != needed:
            raise ValueError(f"teacher {path}: it has {own} {what}, and the data {needed}")
    model = found.model.to(device).requires_grad_(False)
    for size in sorted(set(sizes)):
        try:
            with torch.no_grad():
                model(torch.zeros(1, channels, size, size, device=device))
        except RuntimeError:
            shape = f"{channels}x{size}x{size}"
            raise ValueError(f"teacher {path}: it does not take images of {shape}") from None
    return Teacher(model, weight, temperature)
