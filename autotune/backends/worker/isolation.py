"""Isolation of trials that run one after another in the same worker process.

`snapshot` is taken once, when the process is ready. After each trial `restore` puts the process's
global state back, and `leaked_resources` names what a trial has left that cannot be put back: then
the process is replaced. Torch's own state is added once torch is there (`torch_state`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from autotune.backends.worker import compiled, gpu_memory, process_settings
from autotune.backends.worker.cpu_affinity import bind, usable_cores

if TYPE_CHECKING:
    from autotune.backends.worker.torch_state import TorchState

_GROWTH_BYTES = 512 * 2**20
_GROWTH_FACTOR = 1.5
_GROWTH_FILES = 64
WRITER = "autotune-writer"  # the thread of `checkpoint_io`


@dataclass(frozen=True)
class Snapshot:
    """The process's global state when it was clean; `torch` is None as long as nobody needed it."""

    cores: frozenset[int]
    environ: dict[str, str]
    folder: str
    path: list[str]
    settings: dict[str, Any]
    filters: list[Any]
    numpy_errors: Any
    excepthook: Any
    streams: tuple[Any, Any]
    threads: frozenset[int]
    children: int
    rss_bytes: int
    gpu_share: float = 1.0
    torch: TorchState | None = None


@dataclass(frozen=True)
class ResourceUse:
    """Resources of a process: resident memory, memory allocated on its GPUs, and open files."""

    host_bytes: int
    gpu_bytes: int
    files: int


def snapshot() -> Snapshot:
    """Read the global state that `restore` puts back.

    The collector leaves all that is there alone from now on: it runs after each trial.
    """
    gc.collect()
    gc.freeze()
    return Snapshot(
        cores=usable_cores(),
        environ=dict(os.environ),
        folder=os.getcwd(),
        path=list(sys.path),
        settings=process_settings.read(),
        filters=list(warnings.filters),
        numpy_errors=np.geterr(),
        excepthook=sys.excepthook,
        streams=(sys.stdout, sys.stderr),
        threads=frozenset(t.ident or 0 for t in threading.enumerate()),
        children=_children(),
        rss_bytes=psutil.Process().memory_info().rss,
    )


def restore(clean: Snapshot) -> None:
    """Put the process's global state back to `clean`."""
    if usable_cores() != clean.cores:
        bind(clean.cores)
    os.environ.clear()
    os.environ.update(clean.environ)
    os.chdir(clean.folder)
    sys.path[:] = clean.path
    process_settings.put_back(clean.settings)
    warnings.filters[:] = clean.filters  # type: ignore[index]
    np.seterr(**clean.numpy_errors)
    sys.excepthook = clean.excepthook
    sys.stdout, sys.stderr = clean.streams
    _stop_progress_bars()
    if clean.torch is not None:
        from autotune.backends.worker import torch_state

        torch_state.put_back(clean.torch)
    gc.collect()
    gpu_memory.put_back(clean.gpu_share)


def _stop_progress_bars() -> None:
    """Stop the thread that tqdm starts for all bars; the next bar starts it again."""
    for thread in threading.enumerate():
        if type(thread).__module__ == "tqdm._monitor":
            thread.exit()  # type: ignore[attr-defined]


def resource_use() -> ResourceUse:
    """Measure what this process uses now."""
    files = int(psutil.Process().num_fds())
    host_bytes = int(psutil.Process().memory_info().rss)
    return ResourceUse(host_bytes, gpu_memory.allocated(), files)


def leaked_resources(clean: Snapshot, usual: ResourceUse) -> str:
    """Say why the process must be replaced, or return an empty string.

    Args:
        clean: the state to compare with.
        usual: what the process used after its first trial, when its caches were filled.
    """
    left = [t.name for t in threading.enumerate() if _is_left(t, clean)]
    if left:
        return f"threads left running: {', '.join(sorted(left))}"
    if _children() > clean.children:
        return "child processes left running"
    if stay := [*process_settings.changed(clean.settings), *_changed_of_torch(clean)]:
        return f"settings that cannot be put back: {', '.join(stay)}"
    now = resource_use()
    if now.files > usual.files + _GROWTH_FILES:
        return f"files left open: {now.files - usual.files}"
    for what, bytes_now, before in (
        ("memory", now.host_bytes, usual.host_bytes),
        ("GPU memory", now.gpu_bytes, usual.gpu_bytes),
    ):
        if bytes_now > max(_GROWTH_FACTOR * before, before + _GROWTH_BYTES):
            return f"{what} grew from {before >> 20} to {bytes_now >> 20} MiB"
    return ""


def seed_all(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators, the same on every rank.

    Where nobody has imported torch, its generators do not exist: see `Rank`.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _changed_of_torch(clean: Snapshot) -> list[str]:
    if clean.torch is None:
        return []
    from autotune.backends.worker import torch_state

    return torch_state.changed(clean.torch)


def _children() -> int:
    """Count child processes, except the compiler's, which torch keeps for the process's life.

    The kernel's own list of children may miss some while processes come and go; a scan does not.
    """
    count = 0
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            count += not compiled.is_worker(child.cmdline())
    return count


def _is_left(thread: threading.Thread, clean: Snapshot) -> bool:
    """Whether the trial left this thread.

    Threads of C++ that once called Python do not count, nor those that torch's compiler keeps for
    the life of the process, nor the one that writes checkpoints.
    """
    known = (thread.ident or 0) in clean.threads or thread is threading.current_thread()
    foreign = isinstance(thread, threading._DummyThread) or compiled.is_compilers(thread)
    writes = thread.name.startswith(WRITER)
    return thread.is_alive() and not known and not foreign and not writes
