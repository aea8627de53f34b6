"""Trials on warm worker groups of a Ray cluster, one after another on each.

Starting a trial is one call of each rank of an idle group (`group_lifecycle.py`). Completed calls
arrive in one inbox, and become one signal once all ranks have answered (`turns.py`).
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.metrics import Gauge

from autotune.backends.monitoring import NAMES, Figure
from autotune.backends.protocol import Finished, Launch, Raised, Signal, Stopped, WorkerFailed
from autotune.backends.ray import turns
from autotune.backends.ray.actors import pickled
from autotune.backends.ray.cluster import (
    cluster_errors,
    connect,
    endpoints,
    node_resources,
    nodes,
    room_for_trials,
)
from autotune.backends.ray.group_lifecycle import WorkerGroups
from autotune.backends.ray.health import HeadLost, Nodes, Watch, unreachable
from autotune.backends.ray.resources import fit, resolve_scaling
from autotune.backends.ray.turns import Group, Inbox, PendingCheckpoint
from autotune.errors import StudyError, UserError
from autotune.trial import Change, Hardware
from autotune.trial.scaling import Scaling


class RayPool:
    """Runs trials on warm worker groups of a Ray cluster, as many as fit, also as it grows.

    Args:
        train: the trainer.
        scaling: workers of one trial; `max_concurrent_trials` bounds the number of groups.
        hang_timeout: seconds without an answer from every rank after which a group is ended.
        address: a running cluster's address; None starts Ray on this machine, unless this process
            is connected already.

    Attributes:
        scaling: with what was left to the cluster decided.
        decided: the decision about GPUs, in one line; empty where there was none to make.

    Raises:
        UserError: no cluster at the address, or one on which a trial can never fit.
    """

    realtime = True

    def __init__(
        self,
        train: Callable[[dict[str, Any]], Any],
        scaling: Scaling,
        *,
        hang_timeout: float = 600.0,
        address: str | None = None,
    ) -> None:
        self._owns_ray = connect(address)
        try:
            self.scaling, self.decided = resolve_scaling(scaling, room_for_trials())
            fit(self.scaling, node_resources())
        except UserError:
            self._leave_ray()
            raise
        self._hang_timeout = hang_timeout
        self._inbox: Inbox = queue.SimpleQueue()
        self._groups = WorkerGroups(pickled(train), self.scaling, self._inbox, hang_timeout)
        self._gauges: dict[str, Gauge] = {}
        self._nodes = nodes()
        self._head_lost = False
        self._groups.grow(self._nodes)
        head = ray.get_runtime_context().gcs_address
        self._watch = Watch(nodes, head, self._inbox.put, self._nodes)

    # --- the protocol -------------------------------------------------------------------------

    def busy(self) -> int:
        return sum(g.state in ("running", "closing") for g in self._groups.groups.values())

    def capacity(self) -> int:
        return sum(g.state == "idle" for g in self._groups.groups.values())

    def next_hardware(self, comparable_to: Hardware | None = None) -> Hardware:
        return self._groups.idle(comparable_to).hardware

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

    def stop(self, trial: int, save: str | None) -> None:
        group = self._groups.of(trial)
        group.state = "closing"
        group.checkpoint = PendingCheckpoint(str(save), group.step, group.clock) if save else None
        self._call(group, "stop", str(save) if save else None)

    def wait(self, timeout: float | None) -> Signal | None:
        with cluster_errors():
            return self._wait(timeout)

    def _wait(self, timeout: float | None) -> Signal | None:
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
            if isinstance(arrived, Nodes | HeadLost):
                self._cluster_changed(arrived)
                continue
            group = self._groups.waiting_for(arrived)  # None: its processes have been replaced
            if group is not None and turns.take(group, arrived):
                return self._turn_over(group)

    def wake(self) -> None:
        self._inbox.put(None)

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._watch.close()
        if self._head_lost:  # no cluster is left that could end them
            self._groups.groups.clear()
            self._owns_ray = False
            return
        self._groups.close()
        self._leave_ray()

    def _leave_ray(self) -> None:
        if self._owns_ray:
            self._owns_ray = False
            ray.shutdown()

    # --- turns: all ranks are called, and answer ------------------------------------------------

    def _call(self, group: Group, method: str, *arguments: Any) -> None:
        with cluster_errors():
            calls = [getattr(actor, method).remote(*arguments) for actor in group.actors]
        turns.begin(self._inbox, group, calls, self._hang_timeout)

    def _turn_over(self, group: Group) -> Signal | None:
        """All ranks have answered, or time is up: the signal, and what becomes of the group."""
        group.deadline = float("inf")
        if group.state == "starting":
            self._groups.started(group)
            return None
        lost = unreachable(self._nodes, turns.nodes_of_failed(group))
        signal = turns.signal(group, lost)
        broken = group.failed or group.unanswered or isinstance(signal, WorkerFailed)
        inside = any(a.kind == "milestone" for a in turns.trial_answers(group).values())
        if broken or (isinstance(signal, Raised) and inside):
            self._groups.replace(group, lost)  # some ranks are within their trainer still
        elif isinstance(signal, Finished | Stopped | Raised):
            self._groups.release(group)
        return signal

    def _cluster_changed(self, change: Nodes | HeadLost) -> None:
        """Use the nodes that there are now; without a head, leave while the study can be resumed.

        Groups whose node is gone wait until another one, or a new one, has resources for them.
        """
        if isinstance(change, HeadLost):
            self._head_lost = True
            silent = f"has not answered for {change.seconds:.0f} s"
            raise StudyError(f"Ray's head at {change.address} {silent}: resume on another cluster")
        self._nodes = change.nodes
        self._groups.grow(change.nodes)

    # --- monitoring -----------------------------------------------------------------------------

    def observe(self, figures: Sequence[Figure]) -> None:
        """Show figures on Ray's metrics endpoint, under their names with `ray_` before them."""
        for figure in figures:
            if figure.name not in self._gauges:
                about, labels = NAMES[figure.name], tuple(figure.labels)
                self._gauges[figure.name] = Gauge(figure.name, about, labels)
            self._gauges[figure.name].set(figure.value, dict(figure.labels))

    def endpoints(self) -> list[str]:
        """Where the cluster's nodes serve their metrics, as host:port."""
        return endpoints()
