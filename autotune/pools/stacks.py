"""Where a rank is stuck: a process writes its stacks when it is asked to, and a driver reads them.

They are written into memory that belongs to the process and ends with it, however it ends: a file
in the temp directory would stay behind wherever a rank is killed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import IO

_ANSWER_SECONDS = 1.0
_NAME_LETTERS = 200  # the kernel takes 249


def listen(node: str) -> tuple[IO[bytes], str]:
    """Have SIGUSR1 make this process write its stacks; the file to keep open, and its path.

    It answers even while it holds the interpreter's lock; a stopped process does not.
    """
    handle = os.memfd_create(_name(node, os.getpid()))
    file = os.fdopen(handle, "wb", buffering=0)
    faulthandler.register(signal.SIGUSR1, file, all_threads=True)
    return file, f"/proc/{os.getpid()}/fd/{handle}"


def is_here(path: str, node: str, pid: int) -> bool:
    """Whether `path` is of the process `pid` of `node`: elsewhere the number is a stranger's."""
    try:
        return os.readlink(path).startswith(f"/memfd:{_name(node, pid)}")
    except OSError:
        return False


def read_stack(path: str, node: str, pid: int, own: Collection[Path]) -> str:
    """Where a process on this machine is stuck in its trainer, the innermost call first.

    Calls from the first one on that lies in a file of `own` are left out.
    """
    file = Path(path)
    with contextlib.suppress(OSError):
        if not is_here(path, node, pid):
            return "  (no answer)"
        before = file.stat().st_size
        os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + _ANSWER_SECONDS
        while file.stat().st_size == before and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.05)
        for thread in file.read_text()[before:].split("\n\n"):
            calls = [line for line in thread.splitlines() if line.startswith("  File")]
            ours = [i for i, call in enumerate(calls) if any(f'"{f}"' in call for f in own)]
            if ours:
                return "\n".join(calls[: ours[0]])
    return "  (no answer)"


def _name(node: str, pid: int) -> str:
    return f"autotune-stacks-{node}-{pid}"[:_NAME_LETTERS]
