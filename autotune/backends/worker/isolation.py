"""Isolation of trials that run one after another in the same worker process.

`snapshot` is taken once, when the process is ready. After each trial `restore` puts the process's
global state back, and `leaked_resources` names what a trial has left that cannot be put back: then
the process is replaced.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from torch.nn.modules import module as _modules

from autotune.backends.worker import compiled, float_precision, gpu_memory, process_settings

_GROWTH_BYTES = 512 * 2**20
_GROWTH_FACTOR = 1.5
_GROWTH_FILES = 64
_HOOKS = [n for n in dir(_modules) if n.startswith("_global_") and n.endswith("_hooks")]
_SWITCHES: list[tuple[Any, str]] = [  # those of TF32 are in `float_precision`
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "benchmark_limit"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cudnn, "enabled"),
    (torch.backends.cuda.matmul, "allow_fp16_accumulation"),  # of torch 2.7 and later
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.mkldnn, "enabled"),
]
_BACKENDS = [(owner, name) for owner, name in _SWITCHES if hasattr(owner, name)]


@dataclass(frozen=True)
class Snapshot:
    """The process's global state when it was clean."""

    cores: frozenset[int]
    environ: dict[str, str]
    folder: str
    path: list[str]
    backends: tuple[Any, ...]
    setters: tuple[tuple[Callable[[Any], object], Any], ...]
    settings: dict[str, Any]
    hooks: dict[str, dict[int, Any]]
    filters: list[Any]
    numpy_errors: Any
    excepthook: Any
    streams: tuple[Any, Any]
    threads: frozenset[int]
    children: int
    rss_bytes: int
    gpu_share: float


@dataclass(frozen=True)
class ResourceUse:
    """Resources of a process: resident memory, memory allocated on its GPUs, and open files."""

    host_bytes: int
    gpu_bytes: int
    files: int


def snapshot(gpu_share: float = 1.0) -> Snapshot:
    """Read the global state that `restore` puts back.

    Args:
        gpu_share: of the memory of each GPU, what this process's allocator may take.
    """
    gc.collect()
    gc.freeze()
    return Snapshot(
        cores=frozenset(os.sched_getaffinity(0)),
        environ=dict(os.environ),
        folder=os.getcwd(),
        path=list(sys.path),
        backends=tuple(getattr(owner, name) for owner, name in _BACKENDS),
        setters=(
            (torch.set_default_dtype, torch.get_default_dtype()),
            (torch.set_default_device, None),  # naming one would slow every later trial
            (torch.set_num_threads, torch.get_num_threads()),
            (torch.set_grad_enabled, torch.is_grad_enabled()),
            (float_precision.put_back, float_precision.read()),
            (torch.autograd.set_detect_anomaly, False),
            (_set_deterministic, torch.get_deterministic_debug_mode()),
        ),
        settings=process_settings.read(),
        hooks={name: dict(getattr(_modules, name)) for name in _HOOKS if _is_dict(name)},
        filters=list(warnings.filters),
        numpy_errors=np.geterr(),
        excepthook=sys.excepthook,
        streams=(sys.stdout, sys.stderr),
        threads=frozenset(t.ident or 0 for t in threading.enumerate()),
        children=_children(),
        rss_bytes=psutil.Process().memory_info().rss,
        gpu_share=gpu_share,
    )


def set_cores(cores: Collection[int]) -> None:
    """Bind every thread of this process to `cores`."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def restore(clean: Snapshot) -> None:
    """Put the process's global state back to `clean`."""
    if os.sched_getaffinity(0) != clean.cores:
        set_cores(clean.cores)
    os.environ.clear()
    os.environ.update(clean.environ)
    os.chdir(clean.folder)
    sys.path[:] = clean.path
    for (owner, name), value in zip(_BACKENDS, clean.backends, strict=True):
        if getattr(owner, name) != value:
            setattr(owner, name, value)
    for put_back, value in clean.setters:
        put_back(value)
    process_settings.put_back(clean.settings)
    for name, hooks in clean.hooks.items():
        current = getattr(_modules, name)
        current.clear()
        current.update(hooks)
    warnings.filters[:] = clean.filters  # type: ignore[index]
    np.seterr(**clean.numpy_errors)
    sys.excepthook = clean.excepthook
    sys.stdout, sys.stderr = clean.streams
    _stop_progress_bars()
    torch.clear_autocast_cache()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()  # what it learned of shapes is another trial's
    gc.collect()
    gpu_memory.put_back(clean.gpu_share)


def _stop_progress_bars() -> None:
    """Stop the thread that tqdm starts for all bars; the next bar starts it again."""
    for thread in threading.enumerate():
        if type(thread).__module__ == "tqdm._monitor":
            thread.exit()  # type: ignore[attr-defined]


def resource_use() -> ResourceUse:
    """Measure what this process uses now."""
    files = len(os.listdir("/proc/self/fd"))
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
    if stay := process_settings.changed(clean.settings):
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
    """Seed Python's, numpy's and torch's global generators, the same on every rank."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _set_deterministic(mode: int) -> None:
    torch.set_deterministic_debug_mode(mode)


def _is_dict(name: str) -> bool:
    return isinstance(getattr(_modules, name), dict)


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
    the life of the process.
    """
    known = (thread.ident or 0) in clean.threads or thread is threading.current_thread()
    foreign = isinstance(thread, threading._DummyThread) or compiled.is_compilers(thread)
    return thread.is_alive() and not known and not foreign
