"""A child process that is a rank: it answers the calls of the driver that has started it.

It ends when the driver's end of the connection is closed, however that comes about.
"""

from __future__ import annotations

import io
import os
import pickle
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from autotune.backends.worker.messages import Place
from autotune.backends.worker.rank import Rank

NODE, HOST = "local", "127.0.0.1"
BECOME = "become"
"""The first call: it makes the rank, and has the arguments of `Rank`."""


class LocalRank(Rank):
    """A rank on the driver's own machine."""

    def locate(self, cores: int, gpus: float) -> Place:
        return self.place(NODE, HOST, cores, gpus)


def main(handle: int) -> None:
    """Answer calls until the driver is gone; the first is `BECOME`.

    Args:
        handle: of the connection to the driver, inherited.
    """
    for stream in (sys.stdout, sys.stderr):  # what was printed before a sudden end is not lost
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    connection = Connection(handle)
    os.set_inheritable(handle, False)
    calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, calls), daemon=True).start()
    rank: object = None
    while True:
        method, arguments = calls.get()
        try:
            value = LocalRank(*arguments) if method == BECOME else _call(rank, method, arguments)
        except BaseException as error:  # of the rank itself: a trainer's is within its answer
            rank = error if method == BECOME else rank
            _send(connection, (False, error))
            continue
        rank, value = (value, None) if method == BECOME else (rank, value)
        _send(connection, (True, value))


def _call(rank: object, method: str, arguments: tuple[Any, ...]) -> Any:
    if isinstance(rank, BaseException):  # there is no rank, and this is why
        raise rank
    return getattr(rank, method)(*arguments)


def _send(connection: Connection, answer: tuple[bool, Any]) -> None:
    try:
        data = pickle.dumps(answer)
        pickle.loads(data)  # noqa: S301 (our own: the driver could not read it either)
    except Exception:
        error = answer[1]
        data = pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    try:
        connection.send_bytes(data)
    except OSError:
        _end()


def _read(connection: Connection, calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]]) -> None:
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            _end()
        calls.put(cloudpickle.loads(data))


def _end() -> None:
    """End this process and those that its trainer has started: nobody waits for them any more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.killpg(0, signal.SIGKILL)  # the session is its own
