"""SIGINT and SIGTERM: the first ends the driver in order, the second at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Protocol

from autotune.backends.protocol import Pool


class Interruptible(Protocol):
    """A loop that counts its interruptions, and stops between two events because of them."""

    interruptions: int

    @property
    def pool(self) -> Pool: ...


@contextlib.contextmanager
def interrupts(loop: Interruptible) -> Iterator[None]:
    """Count SIGINT and SIGTERM: after one the loop saves what runs and stops, after two it stops.

    The loop itself stops, between two events, so that none is half written down. A third signal
    raises `KeyboardInterrupt` in whatever does not return.
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
