"""Folders of checkpoints: on a disk that all workers see, or behind any URL that fsspec knows.

A place is text: an absolute path, or a URL such as `s3://bucket/folder`. A file is there whole or
not at all, and its writer learns its checksum.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from autotune.storage import atomic, remote
from autotune.trial import Checkpoint

OWN = "checkpoints"  # the root of checkpoints in a study's own folder
_CHUNK_BYTES = 2**20
_LOCAL = ("file", "local")  # protocols of fsspec for files of this machine
_IN_MEMORY_BYTES = 64 * 2**20  # of a downloaded file; a larger one is put on the disk


class DamagedError(RuntimeError):
    """A file that is not what was written."""


class UnreachableError(OSError):
    """The store of checkpoints cannot be reached: its mount is missing, or its server is silent."""


class Summed:
    """A file that is being written, and the checksum of what has been."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sum = 0

    def write(self, data: Any) -> int:
        self._sum = zlib.crc32(data, self._sum)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def checksum(self) -> str:
        return f"crc32:{self._sum:08x}"


def is_url(place: str) -> bool:
    return "://" in place


def without_file_protocol(place: str) -> str:
    """The path of a URL that names a file of this machine; any other place as it is.

    >>> without_file_protocol("file:///tmp/a"), without_file_protocol("s3://bucket/a")
    ('/tmp/a', 's3://bucket/a')
    """
    protocol, _, path = place.partition("://")
    return path if path and protocol in _LOCAL else place


def join(place: str, *names: str) -> str:
    """A place within another.

    >>> join("s3://bucket/a/", "b"), join("/tmp", "b", "c")
    ('s3://bucket/a/b', '/tmp/b/c')
    """
    return "/".join([place.rstrip("/"), *names])


def root_of(checkpoint: str) -> str:
    """The root above a checkpoint's own folder and its trial's.

    >>> root_of("/shared/digits-5eed5eed/trial-0007/step-100")
    '/shared/digits-5eed5eed'
    """
    return checkpoint.rsplit("/", 2)[0]


def root_in(place: str, study: str, study_id: str) -> str:
    """The root of a study's checkpoints in a folder, or behind a URL, that was given for them.

    >>> root_in("/shared", "digits", "5eed5eed5eed5eed")
    '/shared/digits-5eed5eed'
    """
    given = place if is_url(place) else str(Path(place).absolute())
    return join(given, f"{study}-{study_id[:8]}")


def make_root(root: str) -> None:
    """Make the root of a study's checkpoints, once: if it is missing later, so is its mount.

    Behind a URL there is nothing to make.

    Raises:
        OSError: it cannot be made.
    """
    if not is_url(root):
        Path(root).mkdir(parents=True, exist_ok=True)


def make_below_root(checkpoint: str) -> None:
    """Make a checkpoint's folder, and its trial's, in a root that exists.

    A missing root lies on a missing mount. Nothing is made in the empty mount point: it would pass
    for the study's, and be hidden once the mount is back. The root in a study's own folder may be
    new on this node: that one is made.

    Raises:
        UnreachableError: the root is not there.
        OSError: the folder cannot be made.
    """
    root = root_of(checkpoint)
    if is_url(checkpoint) or Path(root).name == OWN:
        return
    for folder in (Path(checkpoint).parent, Path(checkpoint)):
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise UnreachableError(f"{root} is not there") from None


@contextlib.contextmanager
def writing(folder: str, name: str) -> Iterator[Summed]:
    """A file that is in `folder` once the block is left, and not at all where it raises.

    On a disk it has another name until it is flushed; behind a URL nobody reads it before all files
    of its checkpoint have been written.
    """
    if is_url(folder):
        with remote.store(folder) as (system, path):
            remote.make_folder(system, path)
            with system.open(join(path, name), "wb") as file:
                yield Summed(file)
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with atomic.replacing(Path(folder, name), durable=True) as file:
        yield Summed(file)


@contextlib.contextmanager
def reading(folder: str, name: str) -> Iterator[IO[bytes]]:
    """A file, from its beginning; one behind a URL is downloaded first."""
    if is_url(folder):
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as local:
            with (
                remote.store(folder) as (system, path),
                system.open(join(path, name), "rb") as file,
            ):
                shutil.copyfileobj(file, local, _CHUNK_BYTES)
            local.seek(0)
            yield local
        return
    with open(Path(folder, name), "rb") as file:
        yield file


def verify(file: IO[bytes], expected: str, name: str) -> None:
    """Compare what is left to read in a file with the checksum of what was written.

    Raises:
        DamagedError: its checksum differs; the message begins with `name`.
        OSError: it cannot be read, now.
    """
    crc = 0
    while data := file.read(_CHUNK_BYTES):
        crc = zlib.crc32(data, crc)
    if (checksum := f"crc32:{crc:08x}") != expected:
        raise DamagedError(f"{name} is damaged: its checksum is {checksum} and not {expected}")


def names(folder: str) -> list[str]:
    """The names in a folder, sorted; none where there is no folder.

    Raises:
        OSError: it cannot be listed, now.
    """
    try:
        if is_url(folder):
            with remote.store(folder) as (system, path):
                system.invalidate_cache(path)  # others write there
                paths = [str(entry).rstrip("/") for entry in system.ls(path, detail=False)]
            return sorted(entry.rpartition("/")[2] for entry in paths)
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove(folder: str) -> None:
    """Remove a folder and what is in it, if it is there; what cannot be removed stays."""
    if not is_url(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError), remote.store(folder) as (system, path):
        system.rm(path, recursive=True)


def copy(source: str, to: str) -> bool:
    """Copy the files of a folder into a new one; False where there are none.

    On a disk the copies are hard links where it has them: they cost no time and no space, and
    outlive what they were made from.
    """
    remove(to)  # left by a driver that was killed right here
    whole = [name for name in names(source) if not name.endswith(atomic.SUFFIX)]
    if not whole:
        return False
    if is_url(source):
        with remote.store(source) as (system, path):
            goal = remote.path_in(to)
            remote.make_folder(system, goal)
            for name in whole:
                system.copy(join(path, name), join(goal, name))
        return True
    Path(to).mkdir(parents=True)
    try:
        for name in whole:
            link(Path(source, name), Path(to, name))
    except FileNotFoundError:
        return False
    return True


def link(file: Path, to: Path) -> None:
    """Make a hard link to a file, or a copy where the disk has no links.

    Raises:
        FileNotFoundError: the file is gone, or there is no folder for the link.
        OSError: it cannot be copied either.
    """
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)


def fetch(source: str, files: Iterable[str], to: Path) -> None:
    """Copy these files of a folder onto this machine's disk.

    Raises:
        OSError: one is not there, or cannot be copied.
    """
    to.mkdir(parents=True, exist_ok=True)
    for name in files:
        with reading(source, name) as file, open(to / name, "wb") as copied:
            shutil.copyfileobj(file, copied, _CHUNK_BYTES)


def reach(place: str) -> None:
    """Raise where the place is a URL to which fsspec has no way; see `remote.reach`."""
    if is_url(place):
        remote.reach(place)


def demand(root: str) -> None:
    """Raise where a root that was written to cannot be reached: its files need not be lost.

    Raises:
        UnreachableError: no folder of that name, nothing behind that URL, or no answer.
    """
    try:
        there = bool(names(root)) if is_url(root) else os.path.isdir(root)
    except OSError as error:
        raise UnreachableError(f"{root}: {error}") from None
    if not there:
        raise UnreachableError(f"{root} is not there")


def copied(checkpoint: Checkpoint, folder: str | Path) -> Checkpoint | None:
    """The checkpoint copied into a new `folder`, as `copy` does; None if it is gone."""
    remove(str(folder))  # left by a driver that was killed right here
    made = join(str(folder), f"step-{checkpoint.step}")
    try:
        return replace(checkpoint, path=made) if copy(checkpoint.path, made) else None
    except OSError:
        return None
