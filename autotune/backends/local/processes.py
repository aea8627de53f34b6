"""Child processes of the driver as the processes of worker groups."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import cloudpickle

from autotune.backends.groups.environment import environment
from autotune.backends.local.child import BECOME
from autotune.trial.scaling import Scaling

_LAST_WORDS_SECONDS = 1.0  # for what a process sent before its end
_ROUNDING = 1e-9

# The driver's path comes first: it may have found this package by it.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2].split(chr(0x1f)); "
    "from autotune.backends.local.child import main; main(int(sys.argv[1]))"
)


@dataclass(frozen=True)
class Room:
    """The room of a group: its number, and the GPUs of each rank."""

    number: int
    gpus: tuple[tuple[str, ...], ...]


class ChildProcesses:
    """Starts and ends the processes of worker groups on this machine (`Processes`).

    Args:
        train: the trainer, pickled.
        scaling: workers of one trial, with nothing left open.
        gpus: of this machine, which the groups share out.
        output: a folder for what trainers print, one file a rank; None drops it.
    """

    def __init__(
        self, train: bytes, scaling: Scaling, gpus: Sequence[str], output: Path | None
    ) -> None:
        self._train, self._scaling, self._output = train, scaling, output
        self._free = dict.fromkeys(gpus, 1.0)  # the share of each GPU that no rank has
        self._made = 0

    def reserve(self, strategy: str, lost: Sequence[str] = ()) -> Room:
        room = Room(self._made, tuple(self._take() for _ in range(self._scaling.num_workers)))
        self._made += 1
        return room

    def is_reserved(self, placement: Room) -> bool:
        return True

    def release(self, placement: Room) -> None:
        share = min(self._scaling.gpus, 1.0)
        for gpu in (gpu for rank in placement.gpus for gpu in rank):
            self._free[gpu] += share
        for rank in range(self._scaling.num_workers):
            self._remove_if_empty(self._file(placement, rank))

    def start(self, placement: Room) -> list[Child]:
        size, path = self._scaling.num_workers, list(sys.path)
        children = []
        for rank in range(size):
            variables = environment(self._scaling)
            if placement.gpus[rank]:
                variables["CUDA_VISIBLE_DEVICES"] = ",".join(placement.gpus[rank])
            child = Child(variables, self._file(placement, rank), self.launcher(rank))
            child.call(BECOME, self._train, path, rank, size)
            children.append(child)
        return children

    def launcher(self, rank: int) -> Sequence[str]:
        """The words before the command of this rank's process: none."""
        return ()

    def call(self, process: Child, method: str, *arguments: Any) -> Future[Any]:
        return process.call(method, *arguments)

    def kill(self, process: Child) -> None:
        process.kill()

    def _take(self) -> tuple[str, ...]:
        """GPUs for a rank; `groups.resources.fit` has counted that there are enough."""
        wanted, share = max(round(self._scaling.gpus), 1), min(self._scaling.gpus, 1.0)
        if not share:
            return ()
        found = [gpu for gpu, free in self._free.items() if free >= share - _ROUNDING][:wanted]
        for gpu in found:
            self._free[gpu] -= share
        return tuple(found)

    def _file(self, placement: Room, rank: int) -> Path | None:
        if self._output is None:
            return None
        return self._output / f"worker-{placement.number}-rank-{rank}.txt"

    def _remove_if_empty(self, file: Path | None) -> None:
        with contextlib.suppress(OSError):
            if file is not None and not file.stat().st_size:
                file.unlink()
                file.parent.rmdir()


class Child:
    """A child process and the calls that it has not answered yet, which it answers in order.

    Args:
        variables: set in its environment.
        output: the file to which what it prints is appended; None drops it.
        launcher: a command that becomes the one after it, with its arguments.
    """

    def __init__(
        self, variables: Mapping[str, str], output: Path | None, launcher: Sequence[str] = ()
    ) -> None:
        self._calls: deque[Future[Any]] = deque()
        self._lock = threading.Lock()
        self._gone: Exception | None = None
        self._connection, theirs = Pipe()
        path = chr(0x1F).join(sys.path)
        command = [*launcher, sys.executable, "-c", _PROGRAM, str(theirs.fileno()), path]
        with theirs, _opened(output) as file:
            self.process = subprocess.Popen(  # noqa: S603 (a list of words and no shell)
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **variables},
                start_new_session=True,  # Ctrl-C is the driver's
            )
        self._reader = threading.Thread(target=self._read, name="rank-answers", daemon=True)
        self._reader.start()
        threading.Thread(target=self._await_end, name="rank-end", daemon=True).start()

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method of the rank; the future fails where the process is gone."""
        answer: Future[Any] = Future()
        with self._lock:
            gone = self._gone
            if gone is None:
                self._calls.append(answer)
        if gone is not None:
            answer.set_exception(gone)
            return answer
        with contextlib.suppress(OSError):  # it has just ended: `_await_end` says so
            self._connection.send_bytes(cloudpickle.dumps((method, arguments)))
        return answer

    def kill(self) -> None:
        """End the process, and what its trainer has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _read(self) -> None:
        connection: Connection = self._connection
        with contextlib.suppress(EOFError, OSError):
            while True:
                worked, value = pickle.loads(connection.recv_bytes())  # noqa: S301 (our own child)
                with self._lock:
                    call = self._calls.popleft()
                if worked:
                    call.set_result(value)
                else:
                    call.set_exception(value)

    def _await_end(self) -> None:
        code = self.process.wait()
        self._reader.join(_LAST_WORDS_SECONDS)
        gone = RuntimeError(f"the worker process died unexpectedly: {_how(code)}")
        with self._lock:
            self._gone = gone
            left = [*self._calls]
            self._calls.clear()
        for call in left:
            call.set_exception(gone)
        self._connection.close()


def _how(code: int) -> str:
    """How a process has ended, for people."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    memory = ", which the system also sends where memory runs out" if code == -9 else ""
    return f"ended by {name}{memory}"


@contextlib.contextmanager
def _opened(file: Path | None) -> Any:
    if file is None:
        yield subprocess.DEVNULL
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "ab") as opened:
        yield opened
