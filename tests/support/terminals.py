"""Pseudo-terminals of a given width, and what is printed there."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TextIO

import pyte

HANG_SECONDS = 900.0


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


def screens(
    command: list[str], lines: int, columns: int, cwd: Path | None = None
) -> Iterator[pyte.Screen]:
    """The screen whenever a program has set its title, after which it gets a line; and the last.

    What the program writes after its title comes later, also if it was read with it.
    """
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (lines, columns))
    screen = pyte.HistoryScreen(columns, lines)
    stream = pyte.ByteStream(screen)
    size = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    settings = {k: v for k, v in os.environ.items() if k not in size} | {"TERM": "xterm"}
    given = {"stdin": subprocess.PIPE, "stdout": slave, "stderr": slave, "env": settings}
    with subprocess.Popen(command, cwd=cwd, **given) as process:  # type: ignore[call-overload]
        os.close(slave)
        left = b""
        while True:
            if not left:
                assert select.select([master], [], [], HANG_SECONDS)[0], "it says nothing any more"
                try:
                    left = os.read(master, 65536)
                except OSError:  # the program has ended
                    break
            own, bell, left = left.partition(b"\x07")  # ends a title
            stream.feed(own + bell)
            if screen.title:
                yield screen
                screen.title = ""
                process.stdin.write(b"\n")
                process.stdin.flush()
        os.close(master)
        assert process.wait(HANG_SECONDS) == 0
    yield screen


def text(screen: pyte.Screen) -> str:
    """What stands on a screen."""
    return "\n".join(line.rstrip() for line in screen.display).rstrip()


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
