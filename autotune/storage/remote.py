"""Stores behind URLs, by fsspec, with the errors of a disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

_TRIES, _PAUSE_SECONDS = 6, 0.05  # to make a folder that others make at the same moment


@contextlib.contextmanager
def store(url: str) -> Iterator[tuple[Any, str]]:
    """The file system behind a URL and the path in it.

    Stores raise errors of their own where a disk raises an OSError. After one the connection may be
    dead, and fsspec would reuse it for as long as the process lives: so it is forgotten.

    Raises:
        OSError: whatever the block or the store raised, but for files that are missing.
        FileNotFoundError, NotADirectoryError: a file or folder is missing.
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


def path_in(url: str) -> str:
    """The path of a URL in its store."""
    return _system(url)[1]


def make_folder(system: Any, path: str) -> None:
    """Make a folder that other ranks may be making: some stores answer the second with an error."""
    for left in reversed(range(_TRIES)):
        try:
            system.makedirs(path, exist_ok=True)
            return
        except Exception:
            if not left:
                raise
            system.invalidate_cache()  # it does not know what others have made
            time.sleep(_PAUSE_SECONDS)


def reach(url: str) -> None:
    """Raise where fsspec has no way to the URL.

    Raises:
        ValueError, ImportError: the protocol is unknown, or its plug-in is not installed.
        OSError: the store is connected to at once, and gives no answer.
    """
    try:
        _system(url)
    except (ValueError, ImportError, OSError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def is_gone(error: BaseException) -> bool:
    """Whether an error says that a file is missing, and not that it could not be looked for."""
    return isinstance(error, FileNotFoundError | NotADirectoryError)


def _system(url: str) -> tuple[Any, str]:
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    return system, path.rstrip("/")
