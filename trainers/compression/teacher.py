"""The teacher of a distillation, from the file of a trained model."""

from __future__ import annotations

from pathlib import Path

import torch

from trainers import classifier
from trainers.compression.distill import Teacher, require_file


def read_teacher(
    path: str,
    shape: tuple[int, int, int],
    classes: int,
    device: torch.device,
    weight: float,
    temperature: float,
) -> Teacher:
    """The teacher in a file, which is read as data only (`weights_only`).

    Args:
        shape: channels, height and width of the images.

    Raises:
        ValueError: the file holds no classifier of such images and classes; one line.
    """
    require_file(path)
    found = classifier.load(Path(path).expanduser())
    for what, own, needed in (
        ("classes", len(found.classes), classes),
        ("channels", found.channels, shape[0]),
    ):
        if own != needed:
            raise ValueError(f"teacher {path}: it has {own} {what}, and the data {needed}")
    model = found.model.to(device).requires_grad_(False)
    try:
        with torch.no_grad():
            model(torch.zeros(1, *shape, device=device))
    except RuntimeError:
        size = "x".join(map(str, shape))
        raise ValueError(f"teacher {path}: it does not take images of {size}") from None
    return Teacher(model, weight, temperature)
