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


def usable_cores() -> frozenset[int]:
    """The cores that this process may run on; where the system does not say it, all there are."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def bind(cores: Collection[int], *, whole: bool = True) -> None:
    """Bind this thread to `cores`, and all others of the process if it is `whole`.

    Threads that it starts inherit that. Where the system cannot bind, nothing happens.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    tasks = Path("/proc/self/task")
    threads = [int(t.name) for t in tasks.iterdir()] if whole and tasks.is_dir() else [0]
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores)


def _claimed(count: int, near: Collection[int]) -> Cores:
    cores = Cores((), [])
    for number in sorted(usable_cores(), key=lambda n: (n not in near, n)):
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
