"""Trials on warm worker groups, one after another on each.

Starting a trial is one call of each rank of an idle group (`lifecycle.py`). Completed calls arrive
in one inbox, and become one signal once all ranks have answered (`turns.py`).
"""

from __future__ import annotations

import queue
import time
from concurrent.futures import Future
from typing import Any

from autotune.backends.groups import turns
from autotune.backends.groups.lifecycle import Processes, WorkerGroups
from autotune.backends.groups.turns import Group, Inbox, PendingCheckpoint
from autotune.backends.protocol import Finished, Launch, Raised, Signal, Stopped, WorkerFailed
from autotune.backends.worker.hardware_probe import rank_memory
from autotune.trial import Change, Hardware
from autotune.trial.scaling import Scaling


class WorkerPool:
    """Runs trials on warm worker groups, whatever starts their processes.

    Args:
        processes: starts and ends them.
        scaling: workers of one trial, with nothing left open.
        hang_timeout: seconds without an answer from every rank after which a group is ended.
    """

    realtime = True

    def __init__(self, processes: Processes, scaling: Scaling, hang_timeout: float) -> None:
        self.scaling = scaling
        self._hang_timeout = hang_timeout
        self._inbox: Inbox = queue.SimpleQueue()
        self._groups = WorkerGroups(processes, scaling, self._inbox, hang_timeout)

    def busy(self) -> int:
        return sum(g.state in ("running", "closing") for g in self._groups.groups.values())

    def capacity(self) -> int:
        return sum(g.state == "idle" for g in self._groups.groups.values())

    def next_hardware(self, comparable_to: Hardware | None = None) -> Hardware:
        return self._groups.idle(comparable_to).hardware

    def memory(self, comparable_to: Hardware | None = None) -> int | None:
        places = self._groups.idle(comparable_to).places
        nodes, machines = [p.node for p in places], [p.machine for p in places]
        return rank_memory(nodes, machines, self.scaling.gpus)

    def start(self, launch: Launch) -> Hardware:
        group = self._groups.idle(launch.comparable_to)
        group.state, group.launch = "running", launch
        group.clock, group.waited, group.checkpoint = launch.base, launch.waited, None
        self._call(group, "start", launch)
        return group.hardware

    def resume(self, trial: int, change: Change | None, save: str | None) -> None:
        group = self._groups.of(trial)
        if save is not None:
            group.checkpoint = PendingCheckpoint(str(save), group.step, group.clock)
        self._call(group, "resume", change, str(save) if save else None)

    def measure(self, trial: int) -> None:
        self._call(self._groups.of(trial), "measure")

    def stop(self, trial: int, save: str | None) -> None:
        group = self._groups.of(trial)
        group.state = "closing"
        group.checkpoint = PendingCheckpoint(str(save), group.step, group.clock) if save else None
        self._call(group, "stop", str(save) if save else None)

    def wait(self, timeout: float | None) -> Signal | None:
        end = time.monotonic() + timeout if timeout is not None else float("inf")
        while True:
            now = time.monotonic()
            late = min(self._groups.groups.values(), key=lambda g: g.deadline, default=None)
            due = late.deadline if late is not None else float("inf")
            if late is not None and due <= now and self._inbox.empty():  # else we are late, not it
                return self._turn_over(late)
            until = min(end, due)
            try:
                wait = max(until - now, 0.0) if until < float("inf") else None
                arrived = self._inbox.get(timeout=wait)
            except queue.Empty:
                if time.monotonic() >= end:
                    return None
                continue
            if arrived is None:
                return None
            if not isinstance(arrived, Future):
                self._changed(arrived)
                continue
            group = self._groups.waiting_for(arrived)  # None: its processes have been replaced
            if group is not None and turns.take(group, arrived):
                return self._turn_over(group)

    def wake(self) -> None:
        self._inbox.put(None)

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._groups.close()

    # --- turns: all ranks are called, and answer ------------------------------------------------

    def _call(self, group: Group, method: str, *arguments: Any) -> None:
        self._groups.call(group, self._hang_timeout, method, *arguments)

    def _turn_over(self, group: Group) -> Signal | None:
        """All ranks have answered, or time is up: the signal, and what becomes of the group."""
        group.deadline = float("inf")
        if group.state == "starting":
            self._groups.started(group)
            return None
        lost = self._lost(turns.nodes_of_failed(group))
        signal = turns.signal(group, lost)
        broken = group.failed or group.unanswered or isinstance(signal, WorkerFailed)
        inside = any(
            a.kind in ("milestone", "measured") for a in turns.trial_answers(group).values()
        )
        if broken or (isinstance(signal, Raised) and inside):
            self._groups.replace(group, lost)  # some ranks are within their trainer still
        elif isinstance(signal, Finished | Stopped | Raised):
            self._groups.release(group)
        return signal

    # --- what a backend with several nodes adds -------------------------------------------------

    def _changed(self, change: Any) -> None:
        """Act on what has arrived that is no answer; a single machine does not change."""
        raise AssertionError(f"nothing else arrives: {change!r}")

    def _lost(self, nodes: set[str]) -> list[str]:
        """Those of the nodes, on which workers failed, that cannot be reached any more."""
        return []
