"""Data sets that fit in memory: images, read once per process, kept on the device.

Layout below the data folder (`data_dir`, else the variable AUTOTUNE_DATA, else `data`):
`fashion_mnist/*-ubyte.gz` as published, `cifar10/train_*.npz` and `cifar10/test.npz` with `x`
(N, 32, 32, 3) uint8 and `y` (N,) or its published binary files, `tinyshakespeare/input.txt` for the
language trainer. `digits` comes with scikit-learn and `synthetic` is made here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trainers.data import formats
from trainers.data.formats import Arrays


@dataclass(frozen=True)
class Images:
    """Training and validation images (N, C, H, W), and labels, int64 (N,).

    `train` and `val` are as they are kept: uint8 with the `mean` and the `spread` of each channel
    (1, C, 1, 1), or normalised float32 without these.
    """

    train: Tensor
    train_y: Tensor
    val: Tensor
    val_y: Tensor
    classes: int
    mean: Tensor | None = None
    spread: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train.shape[1:]
        return channels, height, width

    @property
    def train_x(self) -> Tensor:
        """All training images, normalised float32."""
        return self.normalised(self.train)

    @property
    def val_x(self) -> Tensor:
        """All validation images, normalised float32."""
        return self.normalised(self.val)

    def normalised(self, images: Tensor) -> Tensor:
        """Some of `train` or `val` as float32 with mean 0 and deviation 1 over the training set."""
        if self.mean is None or self.spread is None:
            return images
        return images.to(torch.float32).sub_(self.mean).div_(self.spread)

    def first(self, train_size: int | None, val_size: int | None) -> Images:
        """The first images of each part, `train_size` and `val_size` of them; None for all.

        Raises:
            ValueError: there are fewer images.
        """
        for name, size, there in (
            ("train_size", train_size, len(self.train_y)),
            ("val_size", val_size, len(self.val_y)),
        ):
            if size is not None and size > there:
                raise ValueError(f"{name} must be at most {there}, all that there is, got {size}")
        train, val = slice(train_size), slice(val_size)
        return replace(
            self,
            train=self.train[train],
            train_y=self.train_y[train],
            val=self.val[val],
            val_y=self.val_y[val],
        )


def data_folder(data_dir: str | None) -> Path:
    """The folder that holds the data sets."""
    return Path(data_dir or os.environ.get("AUTOTUNE_DATA") or "data")


def require(path: Path, what: str) -> Path:
    """Return `path` if it exists.

    Raises:
        FileNotFoundError: it is missing; one line that says where to put it.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{what}: {path} is missing; put it there, or set data_dir (or the variable "
            f"AUTOTUNE_DATA) to the folder that holds it"
        )
    return path


class Known(NamedTuple):
    """A data set: pixels a side, channels, images of both parts, bytes of a pixel as it is kept."""

    side: int
    channels: int
    train: int
    val: int
    pixel_bytes: int


KNOWN = {
    "digits": Known(8, 1, 1078, 719, 4),
    "fashion_mnist": Known(28, 1, 60_000, 10_000, 1),
    "cifar10": Known(32, 3, 50_000, 10_000, 1),
}
"""Those whose sizes are known before they are read; all have ten classes."""

FILES: dict[str, tuple[str, ...]] = {
    **{name: forms[0].files for name, forms in formats.FORMATS.items()},
    "tinyshakespeare": ("input.txt",),
}
"""The files of a data set's folder, in its usual format; `formats.FORMATS` has the others."""


def require_data(name: str, data_dir: str | None = None) -> Path:
    """The absolute data folder, with every file of the data set `name` below it.

    Raises:
        FileNotFoundError: a file is missing; one line that says where to put it.
        ValueError: the data set is there as Python pickles; one line.
    """
    folder = data_folder(data_dir).resolve()
    if name in formats.FORMATS and formats.located(name, folder) is not None:
        return folder
    for file in FILES.get(name, ()):
        require(folder / name / file, f"data set {name}")
    return folder


def _digits(folder: Path) -> Arrays:
    """1,797 grey 8x8 digits; a fixed stratified split keeps 40 % for validation."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8, 1) * (255 / 16)
    train_x, val_x, train_y, val_y = train_test_split(
        x, y, test_size=0.4, random_state=0, stratify=y
    )
    return train_x, train_y, val_x, val_y


def _published(name: str, root: Path) -> Arrays:
    found = formats.located(name, root)
    assert found is not None, "required before"
    folder, form = found
    return form.read(folder)


READERS: dict[str, Callable[[Path], Arrays]] = {
    "digits": _digits,
    **{name: partial(_published, name) for name in formats.FORMATS},
}


def _kept(arrays: Arrays, device: torch.device) -> Images:
    """The images on the device: bytes as they are, others normalised."""
    train_x, train_y, val_x, val_y = arrays
    kind = np.uint8 if train_x.dtype == np.uint8 else np.float32
    x = [
        torch.from_numpy(np.array(part.transpose(0, 3, 1, 2), dtype=kind, order="C"))
        for part in (train_x, val_x)
    ]
    variance, mean = torch.var_mean(x[0].to(torch.float32), (0, 2, 3), keepdim=True)
    spread = variance.sqrt()
    y = [torch.from_numpy(part.astype(np.int64)).to(device) for part in (train_y, val_y)]
    classes = int(train_y.max()) + 1
    if kind is np.uint8:
        train, val = (part.to(device) for part in x)
        return Images(train, y[0], val, y[1], classes, mean.to(device), spread.to(device))
    train, val = (part.sub_(mean).div_(spread).to(device) for part in x)
    return Images(train, y[0], val, y[1], classes)


@lru_cache(maxsize=4)
def _read(name: str, folder: Path, device: torch.device) -> Images:
    return _kept(READERS[name](folder), device)


@lru_cache(maxsize=1)
def synthetic(train_size: int, val_size: int, image_size: int, device: torch.device) -> Images:
    """Synthetic images: ten fixed random patterns in noise."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 3, image_size, image_size, generator=generator)
    total = train_size + val_size
    y = torch.randint(0, 10, (total,), generator=generator)
    x = torch.randn(total, 3, image_size, image_size, generator=generator) + 0.3 * patterns[y]
    x, y = x.to(device), y.to(device)
    return Images(x[:train_size], y[:train_size], x[train_size:], y[train_size:], 10)


def normalisation(name: str, data_dir: str | None) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel over the training images, of pixels from 0 to 255.

    Raises:
        FileNotFoundError: a file is missing; one line that says where to put it.
    """
    images = read_images(name, data_dir, torch.device("cpu"))
    mean, spread = images.mean, images.spread
    if mean is None or spread is None:
        pixels = torch.from_numpy(np.asarray(READERS[name](Path())[0], dtype=np.float32))
        variance, mean = torch.var_mean(pixels, (0, 1, 2))
        spread = variance.sqrt()
    return mean.flatten().tolist(), spread.flatten().tolist()


def read_images(name: str, data_dir: str | None, device: torch.device) -> Images:
    """The data set `name` of `READERS`, on `device`; a process reads it only once.

    Raises:
        FileNotFoundError: a file is missing; one line that says where to put it.
    """
    return _read(name, require_data(name, data_dir), device)
