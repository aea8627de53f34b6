"""SIGINT, SIGTERM and SIGHUP: the first ends the driver in order, the second at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Protocol

from autotune.study.driver.durable_pool import DurablePool


class Interruptible(Protocol):
    """A loop that counts its interruptions, and stops between two events because of them."""

    interruptions: int

    @property
    def pool(self) -> DurablePool: ...


@contextlib.contextmanager
def interrupts(loop: Interruptible) -> Iterator[None]:
    """Count signals: after one the loop saves what runs and stops, after two it stops.

    The loop itself stops, between two events, so that none is half written down. A third signal
    raises `KeyboardInterrupt` in whatever does not return; a trainer that runs in this thread does
    not, and the second one is raised there. All SIGHUPs are one: a terminal that is
    closed sends one, and its shell another. Where SIGHUP is ignored, as under `nohup`, it stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hung_up = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal hung_up
        if number == signal.SIGHUP:
            _leave_terminal()
            if hung_up:
                return
            hung_up = True
        loop.interruptions += 1
        if loop.interruptions > (1 if loop.pool.training else 2):
            raise KeyboardInterrupt
        loop.pool.wake()

    handled = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_terminal() -> None:
    """Drop the output to a terminal that is gone, where each write would raise."""
    for number in (1, 2):
        try:
            os.write(number, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
