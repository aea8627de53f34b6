"""The teacher of a distillation, from the file of a trained or of a registered model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from trainers import classifier
from trainers.compression.distill import Teacher
from trainers.compression.registered import local

_SAME = 1e-3  # how nearly the means of the same images agree


def _words(mean: Sequence[float], std: Sequence[float]) -> str:
    shown = (", ".join(f"{value:.4g}" for value in values) for values in (mean, std))
    return "the mean {} and deviation {}".format(*shown)


def read_teacher(
    path: str,
    channels: int,
    sizes: Iterable[int],
    classes: int,
    device: torch.device,
    weight: float,
    temperature: float,
    names: Sequence[str] | None = None,
    normal: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Teacher:
    """The teacher in a file, which is read as data only (`weights_only`).

    Args:
        path: the file, or `models:/NAME/VERSION` of MLflow's registry.
        channels: of the images.
        sizes: pixels of a side of the images that it is shown while the student trains.
        names: of the classes, in the order of the student's; None: only their number is compared.
        normal: mean and deviation of each channel of the data; None: not compared.

    Raises:
        ValueError: there is no file, or no classifier of such images and classes in it; one line.
    """
    with local(path) as file:
        try:
            found = classifier.load(file)
        except ValueError as error:  # it names the file, which may be a copy
            raise ValueError(str(error).replace(str(file), path)) from None
    for what, own, needed in (
        ("classes", len(found.classes), classes),
        ("channels", found.channels, channels),
    ):
        if own != needed:
            raise ValueError(f"teacher {path}: it has {own} {what}, and the data {needed}")
    for number, (name, wanted) in enumerate(zip(found.classes, names or (), strict=False)):
        if name != wanted:
            what = f"its class {number} is {name}, and the data's {wanted}"
            raise ValueError(f"teacher {path}: {what}")
    if normal is not None and not np.allclose((found.mean, found.std), normal, rtol=_SAME):
        its, data = _words(found.mean, found.std), _words(*normal)
        raise ValueError(f"teacher {path}: its images have {its}, and the data's {data}")
    model = found.model.to(device).requires_grad_(False)
    for size in sorted(set(sizes)):
        try:
            with torch.no_grad():
                model(torch.zeros(1, channels, size, size, device=device))
        except RuntimeError:
            shape = f"{channels}x{size}x{size}"
            raise ValueError(f"teacher {path}: it does not take images of {shape}") from None
    return Teacher(model, weight, temperature)
