"""Copies of image files: damaged, changed, and more than fit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from trainers.data.copies import Copies
from trainers.parallel.ranks import Ranks

CPU = torch.device("cpu")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Images of the same number of bytes, and of other sizes."""
    paths = [str(tmp_path / f"{i}.bmp") for i in range(3)]
    for i, path in enumerate(paths):
        Image.new("RGB", (4, 4), (80 * i, 0, 0)).save(path)
    return paths


def colours(copies: Copies, files: list[str]) -> list[int]:
    found = [opens.at_least((4, 4)) for opens in map(copies, range(len(files)), files)]
    return [image.getpixel((0, 0))[0] for image in found]


def test_a_damaged_copy_is_made_again(tmp_path: Path, files: list[str]) -> None:
    place = tmp_path / "copies"
    copies = Copies(str(place), 10_000, files)
    copies.fill(0, 3)
    right = {path: path.read_bytes() for path in place.iterdir()}
    assert len(right) == 3
    for path, damage in zip(right, ("cut", "changed", "gone"), strict=True):
        content = bytearray(path.read_bytes())
        content[-10] ^= 1  # of the pixels
        path.write_bytes({"cut": content[:40], "changed": content, "gone": b""}[damage])
        if damage == "gone":
            path.unlink()
    assert colours(copies, files) == [0, 80, 160]
    assert {path: path.read_bytes() for path in place.iterdir()} == right


def test_a_changed_file_gets_a_new_copy(tmp_path: Path, files: list[str]) -> None:
    first = Copies(str(tmp_path / "copies"), 10_000, files)
    first.fill(0, 3)
    Image.new("RGB", (4, 4), (200, 0, 0)).save(files[1])
    os.utime(files[1], (1, 1))
    second = Copies(str(tmp_path / "copies"), 10_000, files)
    second.fill(0, 3)
    assert colours(second, files) == [0, 200, 160]
    assert colours(first, files) == [0, 80, 160]
    assert len([*(tmp_path / "copies").iterdir()]) == 4


def test_the_folder_of_copies_stays_below_its_limit(tmp_path: Path, files: list[str]) -> None:
    """Copies of other files go first that were not used for longest; foreign files stay."""
    place = tmp_path / "copies"
    size = os.path.getsize(files[0]) + 4
    abandoned = place / f"{'0' * 40}.copy.abc.part"
    for rank in range(2):
        Copies(str(place), 3 * size, files).fill(*Ranks(rank, 2, CPU).share(0, 3))
    names = sorted(place.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(names) == 3
    for age, path in enumerate(names):
        os.utime(path, (age, age))
    for path in (place / "notes.txt", abandoned, place / f"{'0' * 40}.copy.new.part"):
        path.write_bytes(b"x" * 100)
    os.utime(abandoned, (1, 1))
    Image.new("RGB", (4, 4), (9, 0, 0)).save(tmp_path / "other.bmp")
    other = Copies(str(place), 3 * size, [str(tmp_path / "other.bmp")])
    other.fill(0, 1)
    left = {*place.iterdir()}
    assert left > {*names[1:], place / "notes.txt", place / f"{'0' * 40}.copy.new.part"}
    assert not left & {names[0], abandoned}
    assert sum(path.stat().st_size for path in left if path.suffix == ".copy") == 3 * size
    few = Copies(str(tmp_path / "few"), 2 * size, files)
    few.fill(0, 3)
    assert colours(few, files) == [0, 80, 160]
    assert len([*(tmp_path / "few").iterdir()]) == 2


def test_without_room_for_copies_the_files_are_read(
    tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Copies(str(tmp_path / "copies"), 10_000, files)

    def full(part: str, copy: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    copies.fill(0, 3)
    assert colours(copies, files) == [0, 80, 160]
    assert not [*(tmp_path / "copies").iterdir()]


def test_copies_that_cannot_be_deleted_stay(
    tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of another user in a folder of all."""
    place = tmp_path / "copies"
    Copies(str(place), 10_000, files[:2]).fill(0, 2)
    (abandoned := place / f"{'0' * 40}.copy.abc.part").touch()
    os.utime(abandoned, (1, 1))
    theirs = {*place.iterdir()}

    def denied(path: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", denied)
    copies = Copies(str(place), os.path.getsize(files[2]) + 4, files[2:])
    copies.fill(0, 1)
    assert colours(copies, files[2:]) == [160]
    assert {*place.iterdir()} > theirs
