"""A process's settings that a trial may change: how each is read, and how it is put back.

What can be read and not be put back (`put_back` is None) is only compared: such a process has to be
replaced.
"""

from __future__ import annotations

import contextlib
import gc
import locale
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.multiprocessing  # its strategy is a setting

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))
_SIGNALS = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
_ASKED_BY = signal.SIGUSR1  # its handler is none of Python's, which alone can be put back
_ROOT = logging.getLogger()


@dataclass(frozen=True)
class Setting:
    read: Callable[[], Any]
    put_back: Callable[[Any], object] | None


def read() -> dict[str, Any]:
    """All settings as they are now, by name."""
    return {name: setting.read() for name, setting in _SETTINGS.items()}


def put_back(clean: Mapping[str, Any]) -> None:
    """Make the settings what they were; what cannot be changed back stays."""
    for name, setting in _SETTINGS.items():
        if setting.put_back is not None and setting.read() != clean[name]:
            with contextlib.suppress(ValueError, OSError):
                setting.put_back(clean[name])
    torch.set_flush_denormal(False)  # nothing says what it is


def changed(clean: Mapping[str, Any]) -> list[str]:
    """The names of the settings that are not what they were."""
    return [name for name, setting in _SETTINGS.items() if setting.read() != clean[name]]


def _handler(number: int) -> Any:
    """A signal's handler; torch sets one when a process first has a loader, and never again."""
    handler = signal.getsignal(number)
    torch_s = str(getattr(handler, "__module__", "")).startswith("torch.utils.data")
    return signal.SIG_DFL if torch_s else handler


def _handlers() -> dict[int, Any]:
    return {number: _handler(number) for number in _SIGNALS}


def _put_back_handlers(clean: Mapping[int, Any]) -> None:
    for number, handler in clean.items():
        python_s = handler is not None and number != _ASKED_BY
        if python_s and _handler(number) != handler:
            signal.signal(number, handler)


def _timers() -> tuple[Any, ...]:
    return tuple(signal.getitimer(which) for which in _TIMERS)


def _put_back_timers(clean: tuple[Any, ...]) -> None:
    for which, (seconds, interval) in zip(_TIMERS, clean, strict=True):
        signal.setitimer(which, seconds, interval)


def _limits() -> tuple[tuple[int, int], ...]:
    return tuple(resource.getrlimit(limit) for limit in _LIMITS)


def _put_back_limits(clean: tuple[tuple[int, int], ...]) -> None:
    for limit, values in zip(_LIMITS, clean, strict=True):
        if resource.getrlimit(limit) != values:
            resource.setrlimit(limit, values)


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _hooks() -> tuple[Any, ...]:
    return threading.excepthook, sys.unraisablehook


def _put_back_hooks(clean: tuple[Any, ...]) -> None:
    threading.excepthook, sys.unraisablehook = clean


def _logging() -> tuple[Any, ...]:
    return _ROOT.level, tuple(_ROOT.handlers), logging.root.manager.disable


def _put_back_logging(clean: tuple[Any, ...]) -> None:
    level, handlers, disabled = clean
    _ROOT.setLevel(level)
    _ROOT.handlers[:] = handlers
    logging.disable(disabled)


def _autocast() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))


def _put_back_autocast(clean: tuple[bool, ...]) -> None:
    for device, on in zip(("cpu", "cuda"), clean, strict=True):
        torch.set_autocast_enabled(device, on)


def _attention() -> tuple[bool, ...]:
    cuda: Any = torch.backends.cuda  # its functions have no types
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()


def _put_back_attention(clean: tuple[bool, ...]) -> None:
    cuda = torch.backends.cuda
    for switch, on in zip(
        (cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp, cuda.enable_math_sdp),
        clean,
        strict=True,
    ):
        switch(on)


def _put_back_collector(on: bool) -> None:
    (gc.enable if on else gc.disable)()


_SETTINGS: Mapping[str, Setting] = {
    "timers": Setting(_timers, _put_back_timers),  # before the handlers: one may be running
    "signal handlers": Setting(_handlers, _put_back_handlers),
    "file mask": Setting(_mask, os.umask),
    "resource limits": Setting(_limits, _put_back_limits),
    "priority": Setting(lambda: os.getpriority(os.PRIO_PROCESS, 0), None),
    "locale": Setting(
        lambda: locale.setlocale(locale.LC_ALL), lambda v: locale.setlocale(locale.LC_ALL, v)
    ),
    "garbage collector": Setting(gc.isenabled, _put_back_collector),
    "garbage thresholds": Setting(gc.get_threshold, lambda v: gc.set_threshold(*v)),
    "recursion limit": Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "switch interval": Setting(sys.getswitchinterval, sys.setswitchinterval),
    "socket timeout": Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "exception hooks": Setting(_hooks, _put_back_hooks),
    "logging": Setting(_logging, _put_back_logging),
    "autocast": Setting(_autocast, _put_back_autocast),
    "attention": Setting(_attention, _put_back_attention),
    "tensor sharing": Setting(
        torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy
    ),
    "inference mode": Setting(torch.is_inference_mode_enabled, None),
    "inter-op threads": Setting(torch.get_num_interop_threads, None),
}
