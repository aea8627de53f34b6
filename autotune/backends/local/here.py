"""Trials in this very process, one at a time.

A generator runs in the thread of the study's loop, and any other function in a thread of its own,
for which the loop waits.

So a breakpoint in the trainer works, and what it prints is in the terminal. What a process of its
own would give is missing: a trainer that hangs hangs the study, and one that kills its process
ends the study, which can be resumed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from threadpoolctl import threadpool_limits

from autotune import blas_threads
from autotune.backends.groups import turns
from autotune.backends.groups.environment import environment
from autotune.backends.groups.turns import Group, PendingCheckpoint
from autotune.backends.local.child import LocalRank
from autotune.backends.local.pool import resolve_here
from autotune.backends.protocol import Finished, Launch, Raised, Signal, Stopped, WorkerFailed
from autotune.backends.worker import reporting
from autotune.backends.worker.cpu_affinity import bind, usable_cores
from autotune.backends.worker.hardware_probe import fingerprint, rank_memory
from autotune.backends.worker.messages import Rendezvous
from autotune.errors import StudyError
from autotune.trial import Change, Hardware
from autotune.trial.scaling import Scaling

_HOST = "127.0.0.1"
_SECONDS = 600.0  # the limit of collectives, of a group of one


class ThisProcess:
    """Runs trials of one rank in this process, in the thread that calls `wait`.

    Args:
        train: the trainer.
        scaling: its one worker.
        on_error: called with what the trainer raised, with its frames still there.

    Attributes:
        scaling: with what was left to the machine decided.
        decided: the decision about GPUs, in one line; empty where there was none to make.
        training: whether the trainer runs now; a KeyboardInterrupt is then raised within it.

    Raises:
        UserError: the worker does not fit on this machine.
    """

    realtime = True

    def __init__(
        self,
        train: Callable[[dict[str, Any]], Any],
        scaling: Scaling,
        on_error: Callable[[BaseException], object] | None = None,
    ) -> None:
        assert scaling.num_workers == 1, "other ranks need processes"
        self.scaling, self.decided = resolve_here(scaling)
        self.training = False
        self._inbox: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._call: tuple[str, tuple[Any, ...]] | None = None
        self._before = dict(os.environ)
        self._joined = False
        self._threads: int | None = None
        self._limits = contextlib.ExitStack()
        os.environ.update(environment(self.scaling))
        if os.environ.get("PYTHONBREAKPOINT", "").startswith("ray."):  # set by Ray, for its workers
            del os.environ["PYTHONBREAKPOINT"]
        self._rank = LocalRank(train, [], 0, 1, on_error)
        cores = 0 if self.scaling.shared else int(self.scaling.cpus)
        place = self._rank.locate(cores, self.scaling.gpus)
        self._cores = place.cores
        shared = self.scaling.shared or not place.cores
        hardware = fingerprint([place.machine], 1, self.scaling, shared=shared)
        self._group = Group(0, None, "PACK", places=[place], hardware=hardware, state="idle")

    # --- the protocol -------------------------------------------------------------------------

    def busy(self) -> int:
        return int(self._group.launch is not None)

    def capacity(self) -> int:
        return 1 - self.busy()

    def next_hardware(self, comparable_to: Hardware | None = None) -> Hardware:
        return self._group.hardware

    def memory(self, comparable_to: Hardware | None = None) -> int | None:
        (place,) = self._group.places
        return rank_memory([place.node], [place.machine], self.scaling.gpus)

    def start(self, launch: Launch) -> Hardware:
        if left := reporting.left_running():
            raise StudyError(f"no other trial can start in this process: {left}")
        group = self._group
        group.state, group.launch = "running", launch
        group.clock, group.waited, group.checkpoint = launch.base, launch.waited, None
        self._call = "start", (launch,)
        return group.hardware

    def resume(self, trial: int, change: Change | None, save: str | None) -> None:
        self._expect(save)
        self._call = "resume", (change, str(save) if save else None)

    def measure(self, trial: int) -> None:
        self._call = "measure", ()

    def stop(self, trial: int, save: str | None) -> None:
        self._group.state = "closing"
        self._expect(save)
        self._call = "stop", (str(save) if save else None,)

    def wait(self, timeout: float | None) -> Signal | None:
        """Run the trainer to its next milestone, however long that takes."""
        if self._call is None:
            with contextlib.suppress(queue.Empty):
                self._inbox.get(timeout=timeout)
            return None
        (method, arguments), self._call = self._call, None
        with self._bound():
            answer = getattr(self._rank, method)(*arguments)
        group = self._group
        group.answers, group.turn_seconds = {0: answer}, float("inf")
        signal = turns.signal(group, [])
        if isinstance(signal, Finished | Stopped | Raised | WorkerFailed):
            group.launch, group.checkpoint, group.state = None, None, "idle"
        return signal

    def wake(self) -> None:
        self._inbox.put(None)

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        """Close what runs, and put this process's environment back."""
        if self._rank is None:
            return
        if self._group.launch is not None and self._joined:
            with self._bound():
                self._rank.stop(None)
        self._group.launch = None
        if left := reporting.left_running():
            print(f"warning: {left}: it still trains in this process", file=sys.stderr)
        self._rank.leave()
        self._rank = None  # type: ignore[assignment]
        os.environ.clear()
        os.environ.update(self._before)
        with blas_threads.LOCK:
            self._limits.close()
        if self._threads is not None:
            sys.modules["torch"].set_num_threads(self._threads)

    # --- the thread of the loop is the trainer's --------------------------------------------------

    def _expect(self, save: str | None) -> None:
        group = self._group
        if save is not None:
            group.checkpoint = PendingCheckpoint(str(save), group.step, group.clock)
        elif group.state == "closing":
            group.checkpoint = None

    @contextlib.contextmanager
    def _bound(self) -> Iterator[None]:
        """Train on the trial's cores with as many threads; afterwards the thread has all again."""
        every = usable_cores()
        if self._cores:
            bind(self._cores, whole=False)
        try:
            self._join()  # only now: the snapshot has the loop's handlers of signals
            self.training = True
            yield
        finally:
            self.training = False
            if self._cores:
                bind(every, whole=False)

    def _join(self) -> None:
        if self._joined:
            return
        torch = sys.modules.get("torch")
        self._threads = torch.get_num_threads() if torch is not None else None
        if self._cores:
            with blas_threads.LOCK:
                self._limits.enter_context(threadpool_limits(len(self._cores)))
        rendezvous = Rendezvous(bool(self._cores), self.scaling.gpus, _SECONDS)
        self._rank.join(_HOST, self._rank.serve(_HOST), rendezvous)
        self._joined = True
