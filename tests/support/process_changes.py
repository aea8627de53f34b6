"""Trainers that change their process in ways that the next trial must not see."""

from __future__ import annotations

import gc
import locale
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from toys import METRIC

import autotune as at

_MASK = 0o077


def changes_everything(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Says how it finds its process, and then changes all of it."""
    found = state_of_the_process()
    yield at.Milestone(0, dict)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, config.get("alarm", 0.0))
    os.umask(_MASK)
    gc.disable()
    gc.set_threshold(7)
    sys.setrecursionlimit(4321)
    sys.setswitchinterval(0.5)
    socket.setdefaulttimeout(0.001)
    logging.getLogger().setLevel(logging.CRITICAL)
    logging.getLogger().addHandler(logging.NullHandler())
    logging.disable(logging.CRITICAL)
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    threading.excepthook = print
    sys.unraisablehook = print
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    torch.set_flush_denormal(True)
    torch.set_autocast_enabled("cpu", True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    for owner in (torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn.conv):
        owner.fp32_precision = "tf32" if owner is not torch.backends.cudnn.conv else "ieee"
    torch.multiprocessing.set_sharing_strategy("file_system")
    yield at.Milestone(1, lambda: found)


def state_of_the_process() -> dict[str, float]:
    mask = os.umask(0)
    os.umask(mask)
    denormal = torch.tensor([1e-310], dtype=torch.float64) * 1.0
    return {
        "signals": sum(
            signal.getsignal(n) == signal.SIG_IGN
            for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        ),
        "mask": mask,
        "alarm": signal.getitimer(signal.ITIMER_REAL)[0],
        "gc": float(gc.isenabled()),
        "threshold": gc.get_threshold()[0],
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "timeout": float(socket.getdefaulttimeout() is not None),
        "level": logging.getLogger().level,
        "handlers": len(logging.getLogger().handlers),
        "disabled": logging.root.manager.disable,
        "locale": float(locale.setlocale(locale.LC_ALL) == "C.UTF-8"),
        "hooks": float(threading.excepthook is print) + float(sys.unraisablehook is print),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "denormals": float(denormal[0] != 0),
        "autocast": float(torch.is_autocast_enabled("cpu")),
        "flash": float(torch.backends.cuda.flash_sdp_enabled()),
        "cudnn attention": float(torch.backends.cuda.cudnn_sdp_enabled()),
        "products": float(torch.get_float32_matmul_precision() == "highest"),
        "tf32": float(torch.backends.cuda.matmul.allow_tf32),
        "convolutions": float(torch.backends.cudnn.allow_tf32),
        "sharing": float(torch.multiprocessing.get_sharing_strategy() == "file_system"),
    }


def compiling(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Starts what torch's compiler starts: a thread pool and its compile workers."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.process_pool().submit(os.getpid).result()
    AsyncCompile.pool().submit(os.getpid).result()
    yield at.Milestone(0, dict)
    threads, folder = threading.active_count(), os.environ["TORCHINDUCTOR_CACHE_DIR"]
    found = {"threads": threads, "cached": float("autotune-compiled" in folder)}
    yield at.Milestone(1, lambda: found)


def staying(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Leaves what cannot be put back, as `stays` says."""
    yield at.Milestone(0, dict)
    if config["stays"] == "files":
        opened = [open(os.devnull) for _ in range(200)]
        sys.modules["staying_held"] = opened  # type: ignore[assignment]
    if config["stays"] == "signal":
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # with which a rank is asked where it is
    if config["stays"] == "nice":
        now = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, now + 1 if now < 19 else now - 1)
    if config["stays"] == "broken":
        sys.modules["torch._dynamo"] = object()  # type: ignore[assignment]
    if config["stays"] == "inference":
        mode = torch.inference_mode()
        mode.__enter__()
        sys.modules["staying_mode"] = mode  # type: ignore[assignment]
    yield at.Milestone(1, lambda: {METRIC: 1.0})


def talking(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Writes `mib` MiB to each of its streams at every milestone, and without end if it can."""
    yield at.Milestone(0, dict)
    line = "x" * 1023
    for step in range(1, 4):
        for stream in (sys.stdout, sys.stderr):
            for _ in range(config["mib"] * 1024):
                print(line, file=stream)
        begin = time.monotonic()
        yield at.Milestone(step, lambda: {METRIC: step / 3, "pid": os.getpid(), "at": begin})  # noqa: B023
