"""Bytes in memory that a process and the processes forked from it share."""

from __future__ import annotations

import mmap
from multiprocessing import get_context

import numpy as np

Bytes = bytes | memoryview


class Shared:
    """A value for each slot, which any of the processes puts there once.

    The memory has no name: it is taken as it is filled, and freed with the last of the processes.
    It is not that of `/dev/shm`, which containers often limit to a few megabytes.

    Args:
        slots: how many values there may be.
        limit: the most bytes of all values together; a value that does not fit is not kept.

    Raises:
        OSError: the machine does not give so much.

    >>> kept = Shared(2, 5)
    >>> kept.put(0, b"four"), kept.put(1, b"more"), kept.put(0, b"")
    (None, None, None)
    >>> bytes(kept.get(0)), kept.get(1)
    (b'four', None)
    """

    def __init__(self, slots: int, limit: int) -> None:
        self._limit = limit
        self._values = memoryview(mmap.mmap(-1, max(1, limit)))
        places = np.frombuffer(mmap.mmap(-1, 16 * slots + 8), np.int64)
        self._used, self._places = places[:1], places[1:].reshape(slots, 2)
        self._lock = get_context("fork").Lock()

    def get(self, slot: int) -> memoryview | None:
        """The value of a slot; None if it has none."""
        with self._lock:
            start, size = self._places[slot].tolist()
        return self._values[start : start + size] if size else None

    def put(self, slot: int, value: Bytes) -> None:
        """Keep a value, unless its slot has one or there is no room."""
        size = len(value)
        with self._lock:
            start = int(self._used[0])
            if self._places[slot, 1] or start + size > self._limit:
                return
            self._used[0] = start + size
        self._values[start : start + size] = value
        with self._lock:  # others see it from now on, whole
            self._places[slot] = start, size
