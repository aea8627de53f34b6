"""Which process drives the study in a folder, and how it is asked to stop.

The driver holds a lock on the journal, and Linux says who holds a lock. A file that said it would
be left behind by a driver that is killed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from autotune.errors import UserError
from autotune.storage import driver_lock
from autotune.storage.journal import JOURNAL

_LOCKS = Path("/proc/locks")


def find(folder: Path) -> int | None:
    """The id of the process that drives the study in the folder; None where it is not known.

    Then no driver works on it, or it is on another machine, another user's, or not on Linux.
    """
    if not driver_lock.is_held(folder / JOURNAL):
        return None
    try:
        file = (folder / JOURNAL).stat()
        rows = [line.split() for line in _LOCKS.read_text().splitlines()]
    except OSError:
        return None
    own = [r for r in rows if r[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and len(r) > 5]
    inodes = {int(r[4]): int(r[5].rpartition(":")[2]) for r in own if r[4].isdecimal()}
    holders = [pid for pid, inode in inodes.items() if inode == file.st_ino]
    return next((pid for pid in holders if _has_open(pid, file)), None)


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Whether the process has this file open: another file system may have the same inode."""
    try:
        opened = [entry.stat() for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.exists()]
    except OSError:
        return False
    return any(os.path.samestat(own, file) for own in opened)


def stop(folder: Path) -> None:
    """Ask the driver of the study to end in order, as Ctrl-C does: it can be resumed.

    Raises:
        UserError: no driver works on it, or it cannot be found from here.
    """
    if not driver_lock.is_held(folder / JOURNAL):
        raise UserError(f"no driver runs the study in {folder}")
    pid = find(folder)
    if pid is None or pid == os.getpid():
        raise UserError(
            f"the driver of {folder} cannot be stopped from here: press Ctrl-C where it runs, or "
            "use `autotune cancel` for a job"
        )
    try:
        os.kill(pid, signal.SIGINT)
    except OSError as error:
        raise UserError(f"the driver of {folder} cannot be stopped: {error.strerror}") from None
