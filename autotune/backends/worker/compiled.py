"""What torch's compiler keeps in a process and on a node from one trial to the next.

Its threads and its compile workers serve the process for life, and its folder of compiled code
serves every rank of the node: none of them is a trial's.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def share_cache() -> None:
    """Name one folder for the compiled code of all ranks of this node, unless one is named.

    By itself torch names it anew for each trial, by variables that a trial may change.
    """
    folder = Path(tempfile.gettempdir()) / f"autotune-compiled-{os.getuid()}"
    if not os.path.lexists(folder) or folder.lstat().st_uid == os.getuid():  # code is loaded there
        os.environ.setdefault(_CACHE, str(folder))


def is_worker(command: Sequence[str]) -> bool:
    """Whether this is the command of the compiler's own process."""
    return any("compile_worker" in part for part in command)


def is_compilers(thread: threading.Thread) -> bool:
    """Whether the compiler's threads include this one: its readers, or one of its pool."""
    target = getattr(thread, "_target", None)
    if str(getattr(target, "__module__", "")).startswith("torch._inductor"):
        return True
    compiler = sys.modules.get("torch._inductor.async_compile")
    if compiler is None or not compiler.AsyncCompile.pool.cache_info().currsize:
        return False
    return thread in compiler.AsyncCompile.pool()._threads
