"""Made-up images: folders of classes that differ in brightness, and published formats."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from PIL import Image


def write(folder: Path, counts: dict[str, int], *, side: int = 16, suffix: str = "png") -> Path:
    """Write so many images of each class into `folder/CLASS/`; the later a class, the brighter."""
    random = np.random.default_rng(0)
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            low = 200 * label // max(len(counts) - 1, 1)
            pixels = random.integers(low, low + 50, (side + i % 3, side, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.{suffix}")
    return folder


def write_fashion_mnist(root: Path) -> None:
    folder = root / "fashion_mnist"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for part, count in (("train", 20), ("t10k", 10)):
        pixels = random.integers(0, 256, (count, 28, 28), np.uint8).tobytes()
        labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(b"\0" * 16 + pixels)
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(b"\0" * 8 + labels)


def write_cifar10(root: Path) -> None:
    folder = root / "cifar10"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, count in (("train_1", 20), ("train_2", 10), ("test", 10)):
        x = random.integers(0, 256, (count, 32, 32, 3), np.uint8)
        np.savez(folder / f"{name}.npz", x=x, y=(np.arange(count) % 10).astype(np.uint8))


def write_binary(folder: Path) -> None:
    """The pixels of `write_cifar10`, as CIFAR-10's binary version has them."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, count in (("data_batch_1", 20), ("data_batch_2", 10), ("test_batch", 10)):
        x = random.integers(0, 256, (count, 32, 32, 3), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)[:, None]
        rows = np.concatenate([labels, x.transpose(0, 3, 1, 2).reshape(count, -1)], 1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
