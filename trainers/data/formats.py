"""Data sets that fit in memory, in the formats in which they are published.

Fashion-MNIST (or MNIST) as idx files, packed or not; CIFAR-10 as its binary version or as NumPy
archives. Python pickles are never read.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = tuple[Array, Array, Array, Array]
"""Training images (N, height, width, channels) and labels, and those for validation."""

CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_UNPACKED = "cifar-10-batches-bin"  # the folder in the published archive
_PICKLED = ("data_batch_1", "cifar-10-batches-py", "cifar-10-python.tar.gz")
_SIDE = 32


@dataclass(frozen=True)
class Format:
    """The files that a data set's folder must have, and how it is read."""

    files: tuple[str, ...]
    read: Callable[[Path], Arrays]


def _idx(path: Path, header: int) -> Array:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def _idx_reader(files: tuple[str, ...]) -> Callable[[Path], Arrays]:
    def read(folder: Path) -> Arrays:
        paths = [folder / file for file in files]
        train_x, val_x = (_idx(path, 16).reshape(-1, 28, 28, 1) for path in paths[::2])
        return train_x, _idx(paths[1], 8), val_x, _idx(paths[3], 8)

    return read


def _npz(paths: list[Path]) -> tuple[Array, Array]:
    x, y = [], []
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            x.append(file["x"])
            y.append(file["y"])
    return np.concatenate(x), np.concatenate(y)


def _read_npz(folder: Path) -> Arrays:
    return *_npz(sorted(folder.glob("train_*.npz"))), *_npz([folder / "test.npz"])


def _binary(paths: list[Path]) -> tuple[Array, Array]:
    """Lines of a label and 3,072 pixels: all red ones, all green ones, all blue ones."""
    size = 1 + 3 * _SIDE * _SIDE
    parts = []
    for path in paths:
        found = np.fromfile(path, np.uint8)
        if len(found) % size or not len(found):
            raise ValueError(f"{path} is damaged: its size is no multiple of {size} bytes")
        parts.append(found.reshape(-1, size))
    rows = np.concatenate(parts)
    return rows[:, 1:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1), rows[:, 0]


def _read_binary(folder: Path) -> Arrays:
    train = sorted(folder.glob("data_batch_*.bin"))
    return *_binary(train), *_binary([folder / "test_batch.bin"])


_PACKED = tuple(f"{name}.gz" for name in _IDX)
FORMATS: dict[str, tuple[Format, ...]] = {
    "fashion_mnist": (Format(_PACKED, _idx_reader(_PACKED)), Format(_IDX, _idx_reader(_IDX))),
    "cifar10": (
        Format(("train_1.npz", "test.npz"), _read_npz),
        Format(("data_batch_1.bin", "test_batch.bin"), _read_binary),
    ),
}
"""Of each data set, the usual format first. There may be more `train_N.npz`, `data_batch_N.bin`."""


def located(name: str, root: Path) -> tuple[Path, Format] | None:
    """Where the data set `name` is at or below `root`, and in which format; None if nowhere.

    Raises:
        ValueError: it is there as Python pickles; one line.
    """
    for folder in _places(name, root):
        for form in FORMATS[name]:
            if all((folder / file).is_file() for file in form.files):
                return folder, form
    for folder in _places(name, root) if name == "cifar10" else ():
        for file in _PICKLED:
            if (folder / file).exists():
                raise ValueError(
                    f"{folder / file} is made of Python pickles, which are never read: use the "
                    f"binary version, cifar-10-binary.tar.gz, unpacked in {root}"
                )
    return None


def recognised(root: Path) -> str | None:
    """The data set whose published files are right in `root`, if one's are.

    Raises:
        ValueError: they are Python pickles; one line.
    """
    return next((name for name in FORMATS if located(name, root) is not None), None)


def class_names(name: str, folder: Path) -> tuple[str, ...]:
    """The classes of a data set; digits for MNIST, whose files are called as Fashion-MNIST's."""
    if name == "cifar10":
        return CIFAR10
    assert name == "fashion_mnist", "a data set without names of its classes"
    return FASHION if "fashion" in str(folder).lower() else tuple("0123456789")


def _places(name: str, root: Path) -> Iterator[Path]:
    yield root / name
    if name == "cifar10":
        yield root / name / _UNPACKED
        yield root / _UNPACKED
    yield root
