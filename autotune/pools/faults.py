"""What errors and stacks of a trainer tell: whether memory ran out, and where it happened."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from autotune import reporting
from autotune.pools import stacks
from autotune.pools.answers import Place

_NO_MEMORY = (
    "can't allocate memory",  # torch's allocator on the host
    "out of memory",  # CUDA, NCCL
    "_ALLOC_FAILED",  # cuBLAS, cuDNN
    "bad_alloc",  # C++
)
_OWN_FILES = (Path(__file__).with_name("rank.py"), Path(reporting.__file__))


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error says, or was caused by one that says, that memory was not to be had.

    torch has one class for its caching allocators only: the host's allocator, CUDA itself and its
    libraries (cuBLAS, cuDNN, NCCL) say it in words.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(says in str(error) for says in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def stack_of(place: Place) -> str:
    """Where a process on this machine is stuck in its trainer, the innermost call first."""
    return stacks.read_stack(place.stacks, place.node, place.pid, _OWN_FILES)


def from_trainer(error: traceback.TracebackException) -> traceback.TracebackException:
    """The traceback without our own frames, and Ray's, above the trainer's."""
    frames = list(error.stack)
    while len(frames) > 1 and (Path(frames[0].filename) in _OWN_FILES or _is_ray(frames[0])):
        frames.pop(0)
    error.stack = traceback.StackSummary.from_list(frames)
    return error


def _is_ray(frame: traceback.FrameSummary) -> bool:
    return "ray/util/tracing" in frame.filename
