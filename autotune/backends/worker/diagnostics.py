"""Errors of a rank: the stacks of one that hangs, out of memory, tracebacks of the trainer.

On a signal a process writes its stacks, and the driver reads them. They are written into memory
that belongs to the process and ends with it, however it ends: a file in the temp directory would
stay behind when a rank is killed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from autotune import trial
from autotune.backends.worker import reported, reporting
from autotune.backends.worker.messages import Place
from autotune.errors import text_of

_ANSWER_SECONDS = 1.0
_NAME_LETTERS = 200  # the kernel takes 249


def write_stacks_on_signal(node: str) -> tuple[IO[bytes], str]:
    """Have SIGUSR1 make this process write its stacks; the file to keep open, and its path.

    This works even while the process holds the interpreter's lock, but not while it is suspended.
    """
    name = _name(node, os.getpid())
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create(name)
        file, path = os.fdopen(handle, "wb", buffering=0), f"/proc/{os.getpid()}/fd/{handle}"
    else:  # not Linux
        path = os.path.join(tempfile.gettempdir(), name)
        file = open(path, "wb", buffering=0)
    faulthandler.register(signal.SIGUSR1, file, all_threads=True)
    return file, path


def is_here(path: str, node: str, pid: int) -> bool:
    """Whether `path` belongs to process `pid` of `node`, and not to another machine's `pid`."""
    name = _name(node, pid)
    try:
        return os.readlink(path).startswith(f"/memfd:{name}")
    except OSError:  # no link where it is no file in memory
        return os.path.basename(path) == name and os.path.isfile(path)


def read_stack(path: str, node: str, pid: int, own: Collection[Path]) -> str:
    """The stack of a process on this machine within its trainer, innermost call first.

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


_NO_MEMORY = (
    "can't allocate memory",  # torch's allocator on the host
    "out of memory",  # CUDA, NCCL
    "cudaErrorMemoryAllocation",
    "_ALLOC_FAILED",  # cuBLAS, cuDNN
    "CUBLAS_STATUS_NOT_INITIALIZED",  # its workspace finds no room when it is first used
    "unable to find an engine to execute",  # cuDNN, all of whose algorithms want more memory
    "Unable to find a valid cuDNN algorithm",
    "bad_alloc",  # C++
)
_OWN_FILES = (Path(__file__).with_name("rank.py"), Path(reporting.__file__))
_REFUSING = (Path(reporting.__file__), Path(reported.__file__))
_VALUES = Path(trial.__file__).parent


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that memory ran out.

    torch has an error class for its caching allocators only: the host's allocator, CUDA itself and
    its libraries (cuBLAS, cuDNN, NCCL) raise others, which are recognized by their text.
    """
    for cause in _chain(error):
        if isinstance(cause, MemoryError) or _is_torchs(cause):
            return True
        text = text_of(cause) if isinstance(cause, RuntimeError) else ""
        if any(says in text for says in _NO_MEMORY):
            return True
    return False


def _is_torchs(error: BaseException) -> bool:
    """Whether it is torch's own error; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def free_frames(error: BaseException) -> None:
    """Free what the calls that ended in an error, and in those that caused it, still refer to."""
    for cause in _chain(error):
        traceback.clear_frames(cause.__traceback__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what caused it, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def stack_of(place: Place) -> str:
    """The stack of a worker on this machine within its trainer, innermost call first."""
    return read_stack(place.stacks, place.node, place.pid, _OWN_FILES)


def from_trainer(error: traceback.TracebackException) -> traceback.TracebackException:
    """The traceback without autotune's and Ray's frames above the trainer's.

    Without those below it as well, where `report` or a value refuses what the trainer gives it.
    """
    frames = list(error.stack)
    while len(frames) > 1 and (Path(frames[0].filename) in _OWN_FILES or _is_ray(frames[0])):
        frames.pop(0)
    while len(frames) > 1 and _refuses(frames[-1]):
        frames.pop()
    error.stack = traceback.StackSummary.from_list(frames)
    return error


def _refuses(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename)
    made = (frame.filename, frame.name) == ("<string>", "__init__")  # by a dataclass
    return made or path in _REFUSING or path.parent == _VALUES


def _is_ray(frame: traceback.FrameSummary) -> bool:
    return "ray/util/tracing" in frame.filename
