"""Files of clicks in Criteo's format, read by several threads in an order that the seed determines.

A line has 40 fields between tabs: the label (0 or 1), 13 whole numbers and 26 categories, as
hexadecimal numbers; fields but the label may be empty. A file whose name ends in `.gz` is unpacked.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

import torch

from trainers.models.clicks import Batch, joined

NUMBERS, FEATURES = 13, 26
_FIELDS = 1 + NUMBERS + FEATURES
_MASK = (1 << 64) - 1


def files_of(folder: str, part: str) -> tuple[Path, ...]:
    """The files in a part of the data, in the order of their names.

    Raises:
        FileNotFoundError: there are none; one line.
    """
    place = Path(folder) / part
    found = sorted(p for p in place.glob("*") if p.is_file()) if place.is_dir() else []
    if not found:
        raise FileNotFoundError(f"{place} has no files; put those of Criteo's format there")
    return tuple(found)


def opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def count_lines(path: Path) -> int:
    with opened(path) as file:
        return sum(1 for _ in file)


def hashed(category: str, feature: int, size: int) -> int:
    """The row of a category, below `size` * 26; a missing one has the first row of its feature.

    The same in every process: multiplications and shifts of splitmix64 (Steele et al. 2014).

    >>> hashed("", 2, 100), hashed("68fd1e64", 0, 100) == hashed("68FD1E64", 0, 100)
    (200, True)
    """
    if not category:
        return feature * size
    mixed = (int(category, 16) + (feature + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return feature * size + 1 + (mixed ^ (mixed >> 31)) % (size - 1)


def parsed(lines: Sequence[bytes], path: Path, first: int, size: int) -> Batch:
    """The samples of some lines.

    A number x becomes log(1 + x), and what is missing or negative 0.

    Args:
        first: the number of the first line in its file, from 1 on, for errors.
        size: rows of each feature, at least 2.

    Raises:
        ValueError: a line that is not of the format; one line with its file and number.
    """
    clicks, dense, categories = [], [], []
    for number, line in enumerate(lines, first):
        fields = line.decode("ascii", "replace").rstrip("\r\n").split("\t")
        try:
            if len(fields) != _FIELDS:
                raise ValueError(f"must have {_FIELDS} fields between tabs, got {len(fields)}")
            if fields[0] not in ("0", "1"):
                raise ValueError(f"must begin with the label 0 or 1, got {fields[0]!r}")
            dense.append([_number(field) for field in fields[1 : 1 + NUMBERS]])
            found = enumerate(fields[1 + NUMBERS :])
            categories.append([_category(field, feature, size) for feature, field in found])
        except ValueError as wrong:
            raise ValueError(f"{path}:{number}: {wrong}") from None
        clicks.append(float(fields[0]))
    numbers = torch.tensor(dense, dtype=torch.float32).view(-1, NUMBERS)
    rows = torch.tensor(categories, dtype=torch.int64).view(-1, FEATURES)
    return Batch(rows, numbers.clamp(min=0).log1p(), torch.tensor(clicks))


def _number(field: str) -> int:
    try:
        return int(field) if field else 0
    except ValueError:
        raise ValueError(f"must have whole numbers in fields 2 to 14, got {field!r}") from None


def _category(field: str, feature: int, size: int) -> int:
    try:
        return hashed(field, feature, size)
    except ValueError:
        raise ValueError(
            f"must have hexadecimal categories in fields 15 to 40, got {field!r}"
        ) from None


def blocks(files: Sequence[Path], length: int, skipped: int, size: int) -> Iterator[Batch]:
    """The samples of some files, one after another, in blocks of `length` lines of a file.

    Args:
        skipped: blocks at the beginning, which are not parsed.
    """
    for path in files:
        with opened(path) as file:
            first = 1
            while lines := list(islice(file, length)):
                if skipped:
                    skipped -= 1
                else:
                    yield parsed(lines, path, first, size)
                first += len(lines)


def read(files: Sequence[Path], most: int | None, size: int) -> Batch:
    """The first `most` samples of some files (all) at once."""
    found, left = [], most
    for block in blocks(files, 4096, 0, size):
        found.append(block if left is None else block.part(slice(0, left)))
        left = None if left is None else left - len(found[-1])
        if left == 0:
            break
    return joined(found)
