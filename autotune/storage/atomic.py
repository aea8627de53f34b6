"""Files and folders that are there whole or not at all: made under another name, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

SUFFIX = ".part"  # of what is still being written, or was when its process was killed


@contextlib.contextmanager
def making(path: Path, *, concurrent: bool = False) -> Iterator[Path]:
    """A name beside `path` for a new file or folder, which is renamed to `path` in the end.

    Where the block raises, what it made is removed and `path` stays as it was.

    Args:
        path: where it is to stand; a file there is replaced, and so is an empty folder.
        concurrent: whether several processes may make it at the same time.

    Raises:
        OSError: it cannot be made or renamed.
    """
    if not path.name:  # "" and "." are this folder
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    name = f"{path.name}.{os.getpid()}" if concurrent else path.name
    part = path.with_name(f"{name}{SUFFIX}")
    try:
        yield part
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            (shutil.rmtree if part.is_dir() else os.unlink)(part)


@contextlib.contextmanager
def replacing(
    path: Path, *, durable: bool = False, concurrent: bool = False
) -> Iterator[IO[bytes]]:
    """A new file, open for writing, which takes the place of `path` in the end; see `making`.

    Args:
        durable: whether the file, and its name, survive a power cut once the block is left.
    """
    with making(path, concurrent=concurrent) as part, open(part, "wb") as file:
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
    if durable:
        _sync_folder(path.parent)


def write(
    path: Path, content: bytes | str, *, durable: bool = False, concurrent: bool = False
) -> None:
    """Write a whole file in the place of `path`; see `replacing`.

    Raises:
        OSError: it cannot be written; `path` is as it was.
    """
    with replacing(path, durable=durable, concurrent=concurrent) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync_content(handle: int) -> None:
    """Flush a file's content to the disk, without its times where the system knows that."""
    getattr(os, "fdatasync", os.fsync)(handle)


def _sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
