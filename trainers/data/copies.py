"""Copies of image files on a disk of the machine, in a folder of bounded size."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from trainers.data.picture import Picture, opened

COPIERS = 8  # threads that copy files
ABANDONED = 3600.0  # seconds after which an unfinished copy is nobody's
_NAMED = re.compile(r"[0-9a-f]{40}\.copy")
_UNFINISHED = re.compile(r"[0-9a-f]{40}\.copy\.\w+\.part")
_CHECKSUM = 4  # bytes


class Copies:
    """Copies of files, named by path, size and time of change of their files.

    A copy has a checksum at its end: one that is damaged is made again. The first files of which
    the copies fit are copied. Files of any other name in the folder are left alone.

    Args:
        limit: the most bytes of all copies in the folder.
        paths: of the files, in the order of their numbers.

    Raises:
        ValueError: the folder cannot be made or written to; one line.
    """

    def __init__(self, folder: str, limit: int, paths: Sequence[str]) -> None:
        self._folder = Path(folder).absolute()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cache_dir {folder} cannot be made: {error.strerror}") from None
        if not os.access(self._folder, os.W_OK):
            raise ValueError(f"cache_dir {folder} cannot be written to")
        self._limit, self._paths = limit, paths
        with ThreadPoolExecutor(COPIERS) as threads:
            self._names, self._total = _fitting(threads.map(_name, paths), limit)

    def __call__(self, number: int, path: str) -> Picture:
        name = self._names[number]
        if name is None:
            return opened(path)
        content = _whole(self._folder / name)
        if content is None:
            content = self._copied(name, path)
        return opened(BytesIO(content))

    def fill(self, start: int, stop: int) -> None:
        """Make the copies of these numbers that are not there, after others have made room.

        A file that cannot be read, or has no room on the disk, is left as it is.
        """
        self._make_room()
        with ThreadPoolExecutor(COPIERS) as threads:
            for done in [threads.submit(self._keep, number) for number in range(start, stop)]:
                done.exception()

    def _keep(self, number: int) -> None:
        name = self._names[number]
        if name is not None:
            try:
                os.utime(self._folder / name)  # used now
            except FileNotFoundError:
                self._copied(name, self._paths[number])

    def _make_room(self) -> None:
        """Delete copies of other files, those first that were not used for longest."""
        mine, others = set(self._names), []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):  # another rank deletes them too, or they are not ours
                    about = entry.stat()
                    if _NAMED.fullmatch(entry.name) and entry.name not in mine:
                        others.append((about.st_mtime, about.st_size, entry.path))
                    old = time.time() - about.st_mtime > ABANDONED
                    if old and _UNFINISHED.fullmatch(entry.name):
                        os.unlink(entry.path)
        total = self._total + sum(size for _, size, _ in others)
        for _, size, path in sorted(others):
            if total <= self._limit:
                break
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError:  # another user's
                continue
            total -= size

    def _copied(self, name: str, path: str) -> bytes:
        """The content of a file, after an attempt to copy it."""
        content = Path(path).read_bytes()
        with suppress(OSError):
            number, part = tempfile.mkstemp(".part", f"{name}.", self._folder)
            try:
                with open(number, "wb") as file:
                    file.write(content)
                    file.write(_checksum(content))
                os.replace(part, self._folder / name)
            except OSError:
                os.unlink(part)
        return content


def _name(path: str) -> tuple[str, int] | None:
    """The name of a file's copy, and its bytes; None for a file that is not there."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    text = f"{os.path.abspath(path)}\0{about.st_size}\0{about.st_mtime_ns}"
    name = f"{hashlib.sha256(os.fsencode(text)).hexdigest()[:40]}.copy"
    return name, about.st_size + _CHECKSUM


def _fitting(copies: Iterable[tuple[str, int] | None], limit: int) -> tuple[list[str | None], int]:
    """The names of the copies that fit into so many bytes, and how many bytes they have."""
    names: list[str | None] = []
    total = 0
    for copy in copies:
        if copy is None or total + copy[1] > limit:
            names.append(None)
        else:
            names.append(copy[0])
            total += copy[1]
    return names, total


def _whole(copy: Path) -> bytes | None:
    """The content of a copy that is there and is not damaged."""
    try:
        found = copy.read_bytes()
    except OSError:
        return None
    content, checksum = found[:-_CHECKSUM], found[-_CHECKSUM:]
    return content if _checksum(content) == checksum else None


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM, "big")
