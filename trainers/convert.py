"""Makes a folder of images by classes, `TO/CLASS/*`, of other ways in which images come.

    python -m trainers.convert images.zip TO            # also .tar, .tar.gz, .tgz, .tar.xz
    python -m trainers.convert labels.csv TO            # lines of FILE,CLASS
    python -m trainers.convert list.txt TO --images DIR --classes names.txt

An archive is unpacked. A list has a file and its class in each line, divided by commas, tabs or
spaces; its first line may name the columns (`file` or `image` or `id`, and `label` or `class`). Its
files are relative to `--images` (the list's own folder); a suffix such as `.jpg` may be missing.
With `--classes` the classes in the list are numbers of lines of that file, from 0. Files are
hard links where possible. For folders `train` and `val` convert two lists, to `TO/train` and
`TO/val`.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trainers.data.image_files import SUFFIXES

_FILE = ("file", "filename", "file_name", "image", "image_id", "img", "path", "id", "name")
_LABEL = ("label", "labels", "class", "category", "target", "breed", "species", "y")
_TARS = (".tar", ".gz", ".tgz", ".xz", ".bz2")


def convert(source: Path, to: Path, images: Path | None = None, classes: Path | None = None) -> int:
    """Convert `source` to the new folder `to`, whole or not at all; how many images it has.

    Raises:
        ValueError: what is wrong, in one line.
        OSError: something cannot be read or written.
    """
    if not source.is_file():
        raise ValueError(f"{source} is no file")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ValueError(f"{to} exists and is not an empty folder")
    part = to.with_name(f".{to.name}-{os.getpid()}")
    part.mkdir(parents=True)  # a new one: whatever is beside `to` stays
    try:
        if source.suffix.lower() == ".zip" or source.suffix.lower() in _TARS:
            _unpack(source, part)
        else:
            names = classes.read_text().splitlines() if classes is not None else None
            _sort(source, part, images or source.parent, names)
        found = sum(path.suffix.lower() in SUFFIXES for path in part.rglob("*"))
        if not found:
            raise ValueError(f"{source} has no images ({', '.join(SUFFIXES)})")
        if to.exists():
            to.rmdir()
        part.replace(to)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return found


def _unpack(source: Path, to: Path) -> None:
    """Unpack an archive; a single folder at its top is left out."""
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as packed:
                packed.extractall(to)  # noqa: S202 (it keeps to the folder by itself)
        else:
            with tarfile.open(source) as packed_tar:
                packed_tar.extractall(to, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{source} cannot be unpacked: {error}") from None
    inside = [path for path in to.iterdir() if path.name[0] not in "._"]
    only = inside[0] if len(inside) == 1 and inside[0].is_dir() else None
    if only is not None and any(path.is_dir() for path in only.iterdir()):
        top = only.rename(to / "..unpacked")
        for path in top.iterdir():
            path.rename(to / path.name)
        top.rmdir()


def _sort(source: Path, to: Path, images: Path, names: list[str] | None) -> None:
    for number, file, label in _lines(source):
        place = f"{source}, line {number}"
        if names is not None:
            if not label.isdigit() or int(label) >= len(names):
                raise ValueError(f"{place}: class {label!r} must be from 0 to {len(names) - 1}")
            label = names[int(label)].strip()
        label = label.replace("/", "-")
        if not label or label[0] in "._":
            raise ValueError(f"{place}: {label!r} cannot be the name of a class")
        found = next(
            (path for s in ("", *SUFFIXES) if (path := images / f"{file}{s}").is_file()), None
        )
        if found is None:
            raise ValueError(f"{place}: there is no file {images / file}")
        if found.suffix.lower() not in SUFFIXES:
            raise ValueError(f"{place}: {found} is no image ({', '.join(SUFFIXES)})")
        (to / label).mkdir(exist_ok=True)
        inside = found.relative_to(images) if found.is_relative_to(images) else found
        wanted = to / label / str(inside).strip("/").replace("/", "_").lstrip(".")
        if wanted.exists():
            raise ValueError(f"{place}: {file} is there twice")
        try:
            os.link(found, wanted)
        except OSError:  # on another disk
            shutil.copyfile(found, wanted)


def _lines(source: Path) -> Iterator[tuple[int, str, str]]:
    """The number, the file and the class of each line."""
    try:
        text = source.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{source} is neither an archive nor a list of files") from None
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    divider = next((mark for mark in ("\t", ",", ";") if mark in first), None)
    rows = (
        csv.reader(lines, delimiter=divider)
        if divider
        else (line.rsplit(None, 1) for line in lines)
    )
    columns = (0, 1)
    for number, row in enumerate(_read(rows, source), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        lower = [cell.lower() for cell in cells]
        file = next((lower.index(name) for name in _FILE if name in lower), None)
        label = next((lower.index(name) for name in _LABEL if name in lower), None)
        if number == 1 and file is not None and label is not None:
            columns = (file, label)
            continue
        if len(cells) <= max(columns):
            raise ValueError(
                f"{source}, line {number} must be FILE,CLASS but is {','.join(cells)!r:.80}"
            )
        yield number, cells[columns[0]], cells[columns[1]]


def _read(rows: Iterable[list[str]], source: Path) -> Iterator[list[str]]:
    number = 0
    try:
        for row in rows:
            number += 1
            yield row
    except csv.Error as error:
        raise ValueError(f"{source}, line {number + 1}: {error}") from None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainers.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, help="an archive, or a list of files and classes")
    parser.add_argument("to", type=Path, help="the new folder")
    parser.add_argument("--images", type=Path, help="the folder of the list's files")
    parser.add_argument("--classes", type=Path, help="the names of numbered classes, one a line")
    given = parser.parse_args(arguments)
    try:
        count = convert(given.source, given.to, given.images, given.classes)
    except (ValueError, OSError) as error:
        print(f"{error}", file=sys.stderr)
        return 2
    print(f"{count} images in {given.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
