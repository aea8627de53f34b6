"""The lock on a study's journal, which one driver at a time holds."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

from autotune.errors import UserError

_TAKEN = BlockingIOError, PermissionError  # the second on some network file systems
_TRIES, _PAUSE = 20, 0.05  # in all about a second: who lists studies holds the lock for a moment


def in_use(folder: Path) -> str:
    """That another process runs the study in `folder`, and what to do."""
    return (
        f"another process is running the study in {folder}: wait for its end, or choose another "
        "folder (--out, out=)"
    )


def take(file: IO[bytes], folder: Path) -> None:
    """Lock the journal of the study in `folder`, until the file is closed.

    Raises:
        UserError: another driver has locked it, or its file system cannot lock files.
    """
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except _TAKEN:
            if not left:
                raise UserError(in_use(folder)) from None
        except OSError as error:
            raise UserError(
                f"{folder}'s file system cannot lock files: {error.strerror}: put the study on a "
                "local disk (--out, out=)"
            ) from None
        time.sleep(_PAUSE)


def is_held(journal: Path) -> bool:
    """Whether a driver has locked this journal now.

    Not where files cannot be locked: no driver begins there, but what is there can be read.
    """
    try:
        file = open(journal, "rb")
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except _TAKEN:
            return True
        except OSError:
            return False
    return False
