"""A script that prints lines of JSON, as a process of its own and with all that it starts."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from autotune.errors import UserError
from autotune.integrations.command_line import CommandLine

Found = tuple[int, dict[str, float]]
"""A step, and the metrics at it."""

_POLL_SECONDS = 0.2
_KEPT_BYTES = 8000  # of its errors, which are shown
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG, of Linux's prctl


class ScriptProcess:
    """A running script; its errors are in the file `errors`."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes], name: str) -> None:
        self._process, self._errors, self._name = process, errors, name

    def milestones(self, key: str) -> Iterator[Found]:
        """Read what it prints, until it ends: the lines of JSON that have a step under `key`."""
        for line in self._lines():
            print(line, flush=True)  # into the worker's log
            if found := parsed(line, key):
                yield found

    def _lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        handle, rest = self._process.stdout.fileno(), b""
        while True:
            if not select.select([handle], [], [], _POLL_SECONDS)[0]:
                if self._process.poll() is None:
                    continue
                break  # what it has started may keep the pipe open
            read = os.read(handle, 2**16)
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if rest:
            yield rest.decode(errors="replace")

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend it and all that it has started."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def check_end(self, seconds: float = 10.0) -> None:
        """Wait for its end, for some seconds at most.

        Raises:
            UserError: it left with an exit code that is not 0.
            RuntimeError: it ended with a traceback, or by a signal.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            if code := self._process.wait(seconds):
                raise self._failure(code)

    def _failure(self, code: int) -> Exception:
        """How it failed in one line; the cause has the end of its errors."""
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - _KEPT_BYTES, 0))
        errors = self._errors.read().decode(errors="replace").strip()
        said = f"{self._name} ended with exit code {code}"
        if code < 0:
            said = f"{self._name} was ended by {signal.Signals(-code).name}"
        crashed = code < 0 or "Traceback (most recent call last)" in errors
        failure = (RuntimeError if crashed else UserError)(with_last_line(said, errors))
        failure.__cause__ = RuntimeError(f"its stderr ended with:\n{errors}") if errors else None
        return failure

    def end(self, grace: float) -> None:
        """End it and all that it has started: by SIGTERM, and after `grace` seconds by SIGKILL."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # one that is suspended ends, too
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@contextlib.contextmanager
def running(
    line: CommandLine,
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    rank: int,
    grace: float,
) -> Iterator[ScriptProcess]:
    """Start the script for a configuration, and end it with the block.

    Args:
        environ: further variables of its environment.
        rank: of this process: what a script of another rank than 0 prints is not read.

    Raises:
        RuntimeError: it cannot be started; one line.
    """
    with tempfile.TemporaryFile(prefix="autotune-script-") as errors:
        try:
            process = subprocess.Popen(  # noqa: S603 (the user's own script)
                line.command(config),
                cwd=line.place,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if rank == 0 else None,
                stderr=errors,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        except OSError as error:
            reason = error.strerror or error
            raise RuntimeError(f"{line.path} cannot be started: {reason}") from None
        script = ScriptProcess(process, errors, line.name)
        try:
            yield script
        finally:
            script.end(grace)


def _die_with_parent() -> Callable[[], object] | None:
    """What a new process does so that it does not outlive this one, however that ends."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PARENT_DEATH, signal.SIGKILL)


def with_last_line(said: str, errors: str) -> str:
    """What is said of a script that failed, with the last line of its errors."""
    lines = errors.strip().splitlines()
    return f"{said}: {lines[-1].strip()}" if lines else said


def parsed(line: str, key: str) -> Found | None:
    """The step and the metrics of a line of JSON, None for any other line.

    What is no number in it is left out.

    >>> parsed('{"step": 100, "acc": 0.9, "at": "noon"}', "step"), parsed("step 100", "step")
    ((100, {'acc': 0.9}), None)
    """
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = found.pop(key, None)
    if not _is_number(step) or not math.isfinite(step) or step != int(step):
        return None
    return int(step), {str(name): float(v) for name, v in found.items() if _is_number(v)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
