"""Exclusive CPU cores: one lock file per core, which the system releases when its process dies.

The locks belong to the node, not to the driver, so that the processes of two studies on one machine
have cores of their own as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_WAIT_SECONDS = 5.0  # a process that has just been killed may still have its cores
_PAUSE_SECONDS = 0.05


@dataclass
class Cores:
    """Cores claimed by this process until it ends or releases them; none if too few were free."""

    numbers: tuple[int, ...]
    locks: list[IO[bytes]]

    def release(self) -> None:
        for lock in self.locks:
            lock.close()
        self.numbers, self.locks = (), []


def claim_cores(
    count: int, wait_seconds: float = _WAIT_SECONDS, *, near: Collection[int] = ()
) -> Cores:
    """Claim `count` cores of those that this process may run on, or none if too few are free.

    Those of `near` are taken first.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        cores = _claimed(count, near)
        if len(cores.numbers) == count or time.monotonic() > deadline:
            break
        cores.release()
        time.sleep(_PAUSE_SECONDS)
    if len(cores.numbers) < count:
        cores.release()
    return cores


def _claimed(count: int, near: Collection[int]) -> Cores:
    cores = Cores((), [])
    for number in sorted(os.sched_getaffinity(0), key=lambda n: (n not in near, n)):
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
