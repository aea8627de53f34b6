"""A rank's GPUs: its share of their memory, who else fills it, and what a trial leaves on them."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from autotune.backends.worker.reporting import synchronize

_ROOM = 2**30  # bytes that a process needs beside its allocator: its context, libraries' workspaces
_WAIT_SECONDS = 10.0  # for the memory of a process that has just been ended
_PAUSE_SECONDS = 0.1

Look = Callable[[], tuple[int, int]]
"""Returns a GPU's free and total bytes."""


def gpu_in_use() -> bool:
    """Whether this process has touched a GPU; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()


def allocated() -> int:
    """Bytes of this process's tensors on all of its GPUs."""
    if not gpu_in_use():
        return 0
    devices = range(_cuda().device_count())
    return sum(int(_cuda().memory_allocated(device)) for device in devices)


def _cuda() -> Any:
    import torch

    return torch.cuda


# --- a share of a GPU -----------------------------------------------------------------------------


def share_of(gpus: float, total: int) -> float:
    """The share of a GPU's memory that the allocator of a rank with `gpus` GPUs may take.

    It leaves room for what the process needs beside it, so that all shares fit on the GPU.

    >>> share_of(1, 80 * 2**30), share_of(0.5, 80 * 2**30)
    (1.0, 0.4875)
    """
    return 1.0 if gpus >= 1 else max(gpus - _ROOM / total, gpus / 2)


def least(gpus: float) -> int:
    """The bytes that the allocator of a rank with `gpus` GPUs may take of the smallest of them."""
    cuda = _cuda()
    totals = [cuda.get_device_properties(i).total_memory for i in range(cuda.device_count())]
    return min((round(share_of(gpus, total) * total) for total in totals), default=0)


def crowded(free: int, total: int, own: int, gpus: float) -> bool:
    """Whether others hold more of a shared GPU than is theirs, when memory has run out.

    Args:
        free, total: bytes of the GPU.
        own: bytes that this process's allocator holds.
        gpus: of this rank; with a whole one, memory that is missing is its own.
    """
    return gpus < 1 and total - free - own > total * (1 - gpus) + _ROOM


def is_crowded(gpus: float) -> bool:
    """Whether memory has run out because others hold more of this process's GPU than is theirs."""
    if not 0 < gpus < 1 or not gpu_in_use():
        return False
    try:
        free, total = _cuda().mem_get_info()
    except RuntimeError:  # the GPU cannot be used from this process any more
        return False
    return crowded(free, total, _cuda().memory_reserved(), gpus)


def take(gpus: float) -> float:
    """Take this rank's share of its GPUs' memory, once who had it before has given it back.

    Returns the share of each that its allocator may use.
    """
    if not gpus or not _cuda().is_available():
        return 1.0
    share = share_of(gpus, _cuda().mem_get_info()[1])
    for device in range(_cuda().device_count()):
        missing = await_free(partial(_cuda().mem_get_info, device), share)
        if missing:
            print(f"GPU {device}: others hold {missing >> 20} MiB of this rank's", file=sys.stderr)
        if share < 1:
            _cuda().set_per_process_memory_fraction(share, device)
    return share


def await_free(
    look: Look, share: float, seconds: float = _WAIT_SECONDS, pause: float = _PAUSE_SECONDS
) -> int:
    """Wait until a share of a GPU's memory is free; how many bytes of it are not, in the end.

    A process that has been killed gives its memory back a little later.
    """
    deadline = time.monotonic() + seconds
    while True:
        free, total = look()
        missing = max(round(share * total) - 2 * _ROOM - free, 0)
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(pause)


# --- between two trials ---------------------------------------------------------------------------


def give_back() -> None:
    """Give memory that nothing refers to any more back at once: others may use the same GPU."""
    gc.collect()
    if gpu_in_use():
        with contextlib.suppress(RuntimeError):
            _cuda().empty_cache()


def put_back(share: float) -> None:
    """Undo what a trial did to its GPUs: caches, streams, the current device, the share."""
    if not gpu_in_use():
        return
    synchronize()  # what a kernel did wrong is known now, and this process cannot be used again
    _cuda().empty_cache()
    for device in reversed(range(_cuda().device_count())):
        _cuda().set_stream(_cuda().default_stream(device))
        _cuda().set_per_process_memory_fraction(share, device)
        _cuda().reset_peak_memory_stats(device)
    _cuda().set_device(0)
