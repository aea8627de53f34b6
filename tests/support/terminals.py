"""Pseudo-terminals of a given width, and what is printed there."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TextIO


def printed(columns: int, work: Callable[[TextIO], object]) -> str:
    """What `work` prints on stdout, and on the stream that it gets, if both are such a terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    read: list[bytes] = []
    reader = threading.Thread(target=_read, args=(master, read))
    reader.start()
    try:
        with open(slave, "w", encoding="utf-8") as terminal, redirect_stdout(terminal):
            work(terminal)
    finally:
        reader.join()
        os.close(master)
    return b"".join(read).decode().replace("\r\n", "\n")


def _read(master: int, read: list[bytes]) -> None:
    """Read until nobody has the other end open any more."""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            return
        if not part:
            return
        read.append(part)
