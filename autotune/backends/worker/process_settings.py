"""Settings of a process that a trial may change: how each is read and put back.

A setting that cannot be put back (`put_back` is None) is only compared: if a trial has changed it,
the process is replaced. Those of torch are in `torch_state`.
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

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))
_SIGNALS = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
_STACKS_SIGNAL = signal.SIGUSR1  # its handler is not Python's and could not be put back
_ROOT = logging.getLogger()

# Torch asks for it at the first product of a process that uses CUDA, and never again: without it no
# later trial of the process can be deterministic.
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


@dataclass(frozen=True)
class Setting:
    """How a setting is read, and how it is put back, if it can be."""

    read: Callable[[], Any]
    put_back: Callable[[Any], object] | None


def read() -> dict[str, Any]:
    """Read all settings, by name."""
    return {name: setting.read() for name, setting in _SETTINGS.items()}


def put_back(clean: Mapping[str, Any]) -> None:
    """Put the settings back to `clean`, as far as they can be."""
    for name, setting in _SETTINGS.items():
        if setting.put_back is not None and setting.read() != clean[name]:
            with contextlib.suppress(ValueError, OSError):
                setting.put_back(clean[name])


def changed(clean: Mapping[str, Any]) -> list[str]:
    """The names of the settings that differ from `clean`."""
    return [name for name, setting in _SETTINGS.items() if setting.read() != clean[name]]


def _handler(number: int) -> Any:
    """A signal's handler; the one that torch sets once, with the first data loader, is ignored."""
    handler = signal.getsignal(number)
    of_torch = str(getattr(handler, "__module__", "")).startswith("torch.utils.data")
    return signal.SIG_DFL if of_torch else handler


def _handlers() -> dict[int, Any]:
    return {number: _handler(number) for number in _SIGNALS}


def _put_back_handlers(clean: Mapping[int, Any]) -> None:
    for number, handler in clean.items():
        settable = handler is not None and number != _STACKS_SIGNAL
        if settable and _handler(number) != handler:
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
}
