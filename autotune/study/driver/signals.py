"""How a driver is told to leave: once in peace, twice at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Protocol

from autotune.backends.protocol import Pool


class Interruptible(Protocol):
    """What counts its interruptions, and leaves between two events because of them."""

    interruptions: int
    pool: Pool


@contextlib.contextmanager
def interrupts(loop: Interruptible) -> Iterator[None]:
    """SIGINT and SIGTERM once: checkpoint what runs and leave; twice: leave at once.

    The loop itself leaves, between two events, so that none is half written down. A third signal
    breaks off whatever it is that does not return.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        loop.interruptions += 1
        if loop.interruptions > 2:
            raise KeyboardInterrupt
        loop.pool.wake()

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
