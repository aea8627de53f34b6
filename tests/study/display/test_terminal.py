"""The live table on a pseudo-terminal, as the terminal's screen holds it: compared with files."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest
import snapshots

SUPPORT = Path(__file__).parents[2] / "support"
SNAPSHOTS = Path(__file__).parent / "snapshots"
HANG_SECONDS = 600.0


def screens(command: list[str], lines: int, columns: int) -> Iterator[pyte.Screen]:
    """The screen whenever a program has set its title, after which it gets a line; and its last."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (lines, columns))
    screen = pyte.Screen(columns, lines)
    stream = pyte.ByteStream(screen)
    size = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    settings = {k: v for k, v in os.environ.items() if k not in size} | {"TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=slave, stderr=slave, env=settings
    ) as process:
        os.close(slave)
        assert process.stdin is not None
        while True:
            assert select.select([master], [], [], HANG_SECONDS)[0], "it says nothing any more"
            try:
                stream.feed(os.read(master, 65536))
            except OSError:  # the program has ended
                break
            if screen.title:
                yield screen
                screen.title = ""
                process.stdin.write(b"\n")
                process.stdin.flush()
        os.close(master)
        assert process.wait(HANG_SECONDS) == 0
    yield screen


@pytest.mark.parametrize("columns", [80, 140])
def test_the_live_table_on_a_terminal(columns: int) -> None:
    command = [sys.executable, str(SUPPORT / "shown_study.py")]
    parts = []
    for screen in screens(command, 30, columns):
        shown = "\n".join(line.rstrip() for line in screen.display).rstrip()
        parts.append(f"{f' {screen.title} ':-^{columns}}\n{shown}\n")
    assert len(parts) == 5
    snapshots.check("\n".join(parts[:4]), SNAPSHOTS / f"terminal-{columns}.txt")
