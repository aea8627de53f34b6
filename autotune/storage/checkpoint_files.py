"""Folders of checkpoints: on a disk that all workers see, or behind any URL that fsspec knows.

A place is text: an absolute path, or a URL such as `s3://bucket/folder`. What is written is whole
or not there, and its checksum is known to who wrote it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from autotune.storage import checkpoint_files
from autotune.trial import Checkpoint

OWN = "checkpoints"  # the root of checkpoints in a study's own folder
_CHUNK_BYTES = 2**20
_TRIES, _PAUSE_SECONDS = 6, 0.05  # to make a folder that others make at the same moment
_IN_MEMORY_BYTES = 64 * 2**20  # of a file that has been sent; a larger one is put on the disk


class DamagedError(RuntimeError):
    """A file that is not what was written."""


class UnreachableError(OSError):
    """The store of checkpoints is not there, now: a mount that is gone, a server without answer."""


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


def make_root(root: str) -> None:
    """Make the root of a study's checkpoints, once: where it is missing later, its mount is.

    Behind a URL there is nothing to be made.

    Raises:
        OSError: it cannot be made.
    """
    if not is_url(root):
        Path(root).mkdir(parents=True, exist_ok=True)


def make_below_root(checkpoint: str) -> None:
    """Make a checkpoint's folder, and its trial's, in a root that is there.

    A root that is not there lies on a mount that is gone. In the empty mount point that it leaves
    nothing is made: it would pass for the study's, and be hidden once the mount is back. The root
    in a study's own folder may be one that this node never saw: that one is made.

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

    On a disk it has another name until it has reached the disk itself; behind a URL nobody asks for
    it before all files of its checkpoint have been written.
    """
    if is_url(folder):
        with _store(folder) as (system, path):
            _make(system, path)
            with system.open(join(path, name), "wb") as file:
                yield Summed(file)
        return
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    part = place / f"{name}.part"
    try:
        with open(part, "wb") as file:
            yield Summed(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(place / name)
        _settle(place)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def reading(folder: str, name: str) -> Iterator[IO[bytes]]:
    """A file, from its beginning; one behind a URL has been sent whole when the block begins."""
    if is_url(folder):
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as copied:
            with _store(folder) as (system, path), system.open(join(path, name), "rb") as file:
                shutil.copyfileobj(file, copied, _CHUNK_BYTES)
            copied.seek(0)
            yield copied
        return
    with open(Path(folder, name), "rb") as file:
        yield file


def verify(file: IO[bytes], expected: str, said: str) -> None:
    """Raise where what is left to read in a file is not what was written.

    Raises:
        DamagedError: its checksum is another; names the file as `said`.
        OSError: it cannot be read, now.
    """
    found = 0
    while data := file.read(_CHUNK_BYTES):
        found = zlib.crc32(data, found)
    if (told := f"crc32:{found:08x}") != expected:
        raise DamagedError(f"{said} is damaged: its checksum is {told} and not {expected}")


def names(folder: str) -> list[str]:
    """The names in a folder, sorted; none where there is no folder.

    Raises:
        OSError: it cannot be listed, now.
    """
    try:
        if is_url(folder):
            with _store(folder) as (system, path):
                system.invalidate_cache(path)  # others write there
                found = [str(entry).rstrip("/") for entry in system.ls(path, detail=False)]
            return sorted(entry.rpartition("/")[2] for entry in found)
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove(folder: str) -> None:
    """Remove a folder and what is in it, if it is there; what cannot be removed stays."""
    if not is_url(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError), _store(folder) as (system, path):
        system.rm(path, recursive=True)


def copy(source: str, to: str) -> bool:
    """Copy the files of a folder into a new one; False where there are none.

    On a disk the copies are hard links where it has them: they cost no time and no space, and
    outlive what they were made from.
    """
    remove(to)  # left by a driver that was killed right here
    found = [name for name in names(source) if not name.endswith(".part")]
    if not found:
        return False
    if is_url(source):
        with _store(source) as (system, path):
            goal = _system(to)[1]
            _make(system, goal)
            for name in found:
                system.copy(join(path, name), join(goal, name))
        return True
    Path(to).mkdir(parents=True)
    try:
        for name in found:
            _link(Path(source, name), Path(to, name))
    except FileNotFoundError:
        return False
    return True


def fetch(source: str, to: Path) -> None:
    """Copy the files of a folder onto this machine's disk."""
    to.mkdir(parents=True, exist_ok=True)
    for name in names(source):
        with reading(source, name) as file, open(to / name, "wb") as copied:
            shutil.copyfileobj(file, copied, _CHUNK_BYTES)


def reach(url: str) -> None:
    """Raise where fsspec has no way to the URL.

    Raises:
        ValueError, ImportError: the protocol is unknown, or its plug-in is not installed.
        OSError: the store is connected to at once, and gives no answer.
    """
    if is_url(url):
        try:
            _system(url)
        except (ValueError, ImportError, OSError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


def is_gone(error: BaseException) -> bool:
    """Whether an error says that a file is not there, and not that it could not be looked for."""
    return isinstance(error, FileNotFoundError | NotADirectoryError)


def demand(root: str) -> None:
    """Raise where a root that was written to is not there: what lay in it need not be gone.

    Raises:
        UnreachableError: no folder of that name, nothing behind that URL, or no answer.
    """
    try:
        there = bool(names(root)) if is_url(root) else os.path.isdir(root)
    except OSError as error:
        raise UnreachableError(f"{root}: {error}") from None
    if not there:
        raise UnreachableError(f"{root} is not there")


@contextlib.contextmanager
def _store(url: str) -> Iterator[tuple[Any, str]]:
    """The file system behind a URL and the path in it.

    Stores have errors of their own for what is an OSError on a disk. Where one was raised, the
    connection may be dead, which fsspec would hand out again for as long as the process lives.
    """
    system = None
    try:
        system, path = _system(url)
        yield system, path
    except Exception as error:
        if is_gone(error):
            raise
        if system is not None:
            type(system).clear_instance_cache()
        if isinstance(error, OSError):
            raise
        raise OSError(f"{url}: {type(error).__name__}: {error}") from error


def _make(system: Any, path: str) -> None:
    """Make a folder that other ranks may be making: some stores tell who comes second an error."""
    for left in reversed(range(_TRIES)):
        try:
            system.makedirs(path, exist_ok=True)
            return
        except Exception:
            if not left:
                raise
            system.invalidate_cache()  # it knows nothing of what others have made
            time.sleep(_PAUSE_SECONDS)


def _link(file: Path, to: Path) -> None:
    with contextlib.suppress(FileNotFoundError, OSError):
        os.link(file, to)
        return
    shutil.copyfile(file, to)


def _settle(folder: Path) -> None:
    """Make a new name in a folder survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _system(url: str) -> tuple[Any, str]:
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    return system, path.rstrip("/")


def copied(checkpoint: Checkpoint, folder: str | Path) -> Checkpoint | None:
    """The checkpoint in a new `folder` of its own, or None if it is gone.

    Its files are hard links where the disk has them, so that it costs no time and no space, and
    outlives the one that it was made from.
    """
    checkpoint_files.remove(str(folder))  # left by a driver that was killed right here
    made = checkpoint_files.join(str(folder), f"step-{checkpoint.step}")
    try:
        return (
            replace(checkpoint, path=made) if checkpoint_files.copy(checkpoint.path, made) else None
        )
    except OSError:
        return None
