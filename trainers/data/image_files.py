"""The image files of a folder: their classes, a reproducible split, and whether they can be read.

A folder holds `train/CLASS/*` and `val/CLASS/*` (or `valid`, `validation`), `train/CLASS/*` alone,
or `CLASS/*`. What is not divided is: the names of the files decide which are for validation, so
that the same folder is always divided in the same way, on any machine.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, TiffImagePlugin, WebPImagePlugin  # noqa: F401 (they add their formats)

from trainers.data.images import require

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
DECODED = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")  # some others start programs
VALIDATION = ("val", "valid", "validation")
MOST_DECODED = 20_000  # images that `check` decodes; of more an even selection


@dataclass(frozen=True)
class Files:
    """Images with the numbers of their classes, in the order of their names."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[int, ...]

    def some(self, chosen: Sequence[int]) -> Files:
        """The images of these indices."""
        paths = tuple(self.paths[i] for i in chosen)
        return Files(self.classes, paths, tuple(self.labels[i] for i in chosen))


def listed(folder: Path, nested: bool = False) -> Files:
    """The images `CLASS/*` of a folder.

    Args:
        nested: classes are also those of inner folders, `ALPHABET/CLASS/*`, under this name.

    Raises:
        FileNotFoundError: there is no folder, or none with images; one line.
    """
    require(folder, "image folder")
    classes = sorted(_nested(folder)) if nested else _classes(folder)
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(str(p) for p in (folder / name).iterdir() if p.suffix.lower() in SUFFIXES)
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise FileNotFoundError(
            f"image folder: {folder} holds no images; they belong into {folder}/CLASS/*.jpg"
        )
    return Files(tuple(classes), tuple(paths), tuple(labels))


def parts(root: Path, val_share: float) -> tuple[Files, Files]:
    """The images for training and for validation.

    Args:
        val_share: the share of each class that validates, where there is no folder for that.

    Raises:
        FileNotFoundError: there are no images; one line.
    """
    train = root / "train"
    if not train.is_dir() or (not _classes(train) and _has_images(train)):  # a class of that name
        inside = root.is_dir() and any(_has_images(root / name) for name in _classes(root))
        return split(listed(root if inside else train), val_share)
    val = next((root / name for name in VALIDATION if (root / name).is_dir()), None)
    if val is None:
        return split(listed(train), val_share)
    return listed(train), listed(val)


def split(files: Files, val_share: float) -> tuple[Files, Files]:
    """A part of each class for validation: those whose names have the least hashes.

    At least one image of a class that has two or more, and never all of them.
    """
    val: set[int] = set()
    by_class: dict[int, list[int]] = {}
    for i, label in enumerate(files.labels):
        by_class.setdefault(label, []).append(i)
    for label, own in by_class.items():
        own.sort(key=lambda i: _hash(files.classes[label], files.paths[i]))
        count = min(max(round(val_share * len(own)), 1), len(own) - 1)
        val.update(own[: max(count, 0)])
    rest = [i for i in range(len(files.paths)) if i not in val]
    return files.some(rest), files.some(sorted(val))


def check(train: Files, val: Files) -> int:
    """Check that a classifier can be trained on these; the median of their shorter sides.

    Raises:
        ValueError: fewer than two classes, other classes to validate, a class without images, or
            images that cannot be read; one line.
    """
    if len(train.classes) < 2:
        raise ValueError(
            f"image folder: at least two classes are needed, each a folder of its own, but there "
            f"is one: {train.classes[0]!r}"
        )
    check_classes(train, val)
    for part, files in (("train", train), ("validate", val)):
        there = set(files.labels)
        for label, name in enumerate(files.classes):
            if label not in there:
                raise ValueError(f"image folder: class {name!r} has no image to {part}")
    paths = [*train.paths, *val.paths]
    count = min(len(paths), MOST_DECODED)
    chosen = [paths[i * len(paths) // count] for i in range(count)]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as threads:
        found = list(threads.map(_side, chosen))
    faults = {path: side for path, side in zip(chosen, found, strict=True) if isinstance(side, str)}
    if faults:
        (path, fault), more = next(iter(faults.items())), len(faults) - 1
        also = f" (and {more} more)" if more else ""
        raise ValueError(f"image folder: {path} cannot be read as an image: {fault}{also}")
    sides = sorted(side for side in found if isinstance(side, int))
    return sides[len(sides) // 2]


def check_classes(train: Files, val: Files) -> None:
    """Check that both have the same classes.

    Raises:
        ValueError: they differ; one line.
    """
    if train.classes != val.classes:
        differ = sorted(set(train.classes) ^ set(val.classes))
        root = Path(train.paths[0]).parents[2]
        raise ValueError(f"{root}: train and val must hold the same classes, not {differ}")


def _side(path: str) -> int | str:
    """The shorter side of an image, decoded once, or why it cannot be."""
    try:
        with Image.open(path, formats=DECODED) as file:
            side = min(file.size)
            file.draft("RGB", (1, 1))  # a JPEG's decoder then computes as little as possible
            file.load()
    except Exception as error:  # of any decoder
        return " ".join(str(error).split()) or type(error).__name__
    return side


def _classes(folder: Path) -> list[str]:
    entries = (entry for entry in folder.iterdir() if entry.is_dir())
    return sorted(entry.name for entry in entries if entry.name[0] not in "._")


def _nested(root: Path, inside: str = "") -> Iterator[str]:
    """The paths of folders with images, or with nothing; only those at the top may be links."""
    for name in _classes(root / inside):
        path = f"{inside}/{name}" if inside else name
        folder = root / path
        if _has_images(folder) or not _classes(folder):
            yield path
        if not (inside and folder.is_symlink()):  # which may lead back
            yield from _nested(root, path)


def _has_images(folder: Path) -> bool:
    return any(path.suffix.lower() in SUFFIXES for path in folder.iterdir())


def _hash(name: str, path: str) -> bytes:
    return hashlib.sha256(os.fsencode(f"{name}/{Path(path).name}")).digest()
