"""Validation in a process of its own, while training goes on (`validation` "beside").

The first rank starts the process, which has the data and a model of its own, and sends it the
weights at each milestone. What comes back is a future; the report is made at the next milestone.
The process may use cores that the ranks leave idle, and has the lowest priority once training
begins. It ends with the training, and by itself where its rank is gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from typing import Any

import cloudpickle
import psutil
import torch
from torch import Tensor

from trainers.evaluation import sums
from trainers.memory.precision import DTYPES, numerics
from trainers.parallel.protocol import Forward
from trainers.parallel.ranks import Ranks, device
from trainers.parallel.single import Single
from trainers.parallel.states import reshaped
from trainers.training import Training

Weights = Mapping[str, Tensor]
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2].split(chr(0x1f)); "
    "from trainers.validation_process import main; main(int(sys.argv[1]))"
)
_PAUSE_SECONDS = 0.5  # between two looks whether the rank is there
_END_SECONDS = 5.0  # for a process that has closed its connection to end
_LOWEST = 19


class RemoteTraceback(Exception):  # noqa: N818  # it is the text of one
    """The traceback of an error in the process that validates, as the cause of that error."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Beside:
    """The process that validates, as its rank has it.

    Args:
        again: makes the `trainers.task.Task`, in that process; it is pickled.
        training: its precision and microbatch are used.
    """

    def __init__(self, again: Callable[[], Any], training: Training) -> None:
        own = training.precision, training.deterministic, training.microbatch
        begun = cloudpickle.dumps((again, *own, torch.get_num_threads()))
        self._connection, theirs = Pipe()
        path = chr(0x1F).join(sys.path)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 (a list of words and no shell)
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), path],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # it is ended with the loaders that it has started
            )
        self._thread = ThreadPoolExecutor(1, "autotune-validation")
        self._last: Future[Any] = self._thread.submit(self._exchange, begun)

    def ready(self) -> None:
        """Wait until the process has its data and its model.

        Raises:
            Exception: what was raised there.
            BrokenExecutor: it has ended.
        """
        self._last.result()

    def submit(self, weights: Weights, metrics: Mapping[str, float]) -> Future[dict[str, float]]:
        """The metrics of a validation of these weights, which are not changed, before `metrics`."""

        def validated() -> dict[str, float]:
            right, loss, count = self._exchange(pickle.dumps(weights))
            return {"val_accuracy": right / count, "val_loss": loss / count, **metrics}

        self._last = self._thread.submit(validated)
        return self._last

    def settle(self) -> None:
        """Wait for what was submitted; its future has what came of it."""
        self._last.exception()

    def close(self) -> None:
        """End the process; what it has not answered yet fails."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._thread.shutdown()
        self._connection.close()

    def _exchange(self, message: bytes) -> Any:
        try:
            self._connection.send_bytes(message)
            worked, value = pickle.loads(self._connection.recv_bytes())  # noqa: S301 (our own)
        except (EOFError, OSError):
            raise BrokenExecutor(f"the process that validates {self._how()}") from None
        if worked:
            return value
        error, text = value
        error.__cause__ = RemoteTraceback(text)
        raise error

    def _how(self) -> str:
        """How the process has ended, for people."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "gives no answer any more"
        if code >= 0:
            return f"has ended with exit code {code}"
        memory = ", which the system also sends where memory runs out" if code == -9 else ""
        return f"was ended by {signal.Signals(-code).name}{memory}"


# --- in that process ------------------------------------------------------------------------------


def main(handle: int) -> None:
    """Validate the weights that come in until the rank is gone.

    Args:
        handle: of the connection to the rank, inherited.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    _leave_cores()
    connection = Connection(handle)
    os.set_inheritable(handle, False)
    with contextlib.suppress(EOFError, OSError), contextlib.ExitStack() as opened:
        validate = _answer(connection, lambda message: _begun(message, opened))
        while validate is not None:
            _answer(connection, validate)
    os.killpg(0, signal.SIGKILL)


def _answer(connection: Connection, compute: Callable[[bytes], Any]) -> Any:
    """Answer one message with what is computed of it, a function aside; or with what it raised."""
    message = connection.recv_bytes()
    try:
        value = compute(message)
        answer = pickle.dumps((True, None if callable(value) else value))
    except Exception as error:
        value, text = None, traceback.format_exc()
        try:
            answer = pickle.dumps((False, (error, text)))
            pickle.loads(answer)  # noqa: S301 (our own: the rank could not read it either)
        except Exception:
            plain = RuntimeError(f"{type(error).__name__}: {error}")
            answer = pickle.dumps((False, (plain, text)))
    connection.send_bytes(answer)
    return value


def _begun(message: bytes, opened: contextlib.ExitStack) -> Callable[[bytes], list[float]]:
    """What validates weights, with data and model of the task that the first message describes."""
    again, precision, deterministic, microbatch, threads = pickle.loads(message)  # noqa: S301
    torch.set_num_threads(threads)
    ranks = Ranks(0, 1, device())
    opened.enter_context(numerics(precision, deterministic, ranks.device))
    task = again()
    stream = task.stream(lambda seen: (1, round(task.size(0.0))), ranks)
    opened.callback(stream.close)
    model = task.model(stream).to(ranks.device, memory_format=task.layout).eval()
    forward = Forward(ranks.device, DTYPES.get(precision), task.layout)
    parallel = Single(model, ranks, forward)
    own = model.state_dict()

    def validate(message: bytes) -> list[float]:
        weights = pickle.loads(message)  # noqa: S301 (our own rank's)
        model.load_state_dict({key: reshaped(value, own[key]) for key, value in weights.items()})
        found: list[float] = sums(parallel, stream.validation(), microbatch, forward).tolist()
        return found

    with torch.no_grad():
        for count in stream.evaluated()[:1]:
            sums(parallel, [stream.dummy(count)], microbatch, forward)
    os.setpriority(os.PRIO_PGRP, 0, _LOWEST)  # its rank has waited for it until here
    return validate


def _leave_cores() -> None:
    """Let this process use the cores of whoever started its rank, which is bound to its own."""
    with contextlib.suppress(AttributeError, OSError, psutil.Error):
        started_by = psutil.Process(os.getppid()).ppid()
        os.sched_setaffinity(0, os.sched_getaffinity(started_by))


def _end_with(rank: int) -> None:
    """End this process, and those that it has started, once its rank is gone."""
    while os.getppid() == rank:
        time.sleep(_PAUSE_SECONDS)
    os.killpg(0, signal.SIGKILL)
