"""CPU cores of one's own: a lock file a core, which the system releases when its process dies.

The locks are the node's, not the driver's, so that two studies on one machine do not time each
other either.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PATIENCE_SECONDS = 5.0  # a process that has just been killed may still hold its cores
_PAUSE_SECONDS = 0.05


@dataclass
class Cores:
    """Cores that this process holds until it ends or releases them; none if too few were free."""

    numbers: tuple[int, ...]
    locks: list[IO[bytes]]

    def release(self) -> None:
        for lock in self.locks:
            lock.close()
        self.numbers, self.locks = (), []


def claim_cores(count: int, patience_seconds: float = _PATIENCE_SECONDS) -> Cores:
    """`count` cores of this machine that nobody else has claimed, or none at all.

    A core is looked for among those that this process may run on.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        cores = _claimed(count)
        if len(cores.numbers) == count or time.monotonic() > deadline:
            break
        cores.release()
        time.sleep(_PAUSE_SECONDS)
    if len(cores.numbers) < count:
        cores.release()
    return cores


def _claimed(count: int) -> Cores:
    cores = Cores((), [])
    for number in sorted(os.sched_getaffinity(0)):
        if len(cores.numbers) == count:
            break
        with contextlib.suppress(OSError):
            lock = open(_folder() / f"core-{number}", "ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            cores.locks.append(lock)
            cores.numbers = (*cores.numbers, number)
    return cores


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"autotune-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
