"""Trials on warm worker groups of a Ray cluster, one after another on each.

A trial's start is one call of each rank of an idle group (`fleet.py`). The ranks' answers arrive in
one inbox (`inbox.py`), and mean one signal once all are there (`turns.py`).
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.metrics import Gauge

from autotune.backends.monitoring import NAMES, Figure
from autotune.backends.protocol import Broke, Finished, Launch, Raised, Signal, Stopped
from autotune.backends.ray import turns
from autotune.backends.ray.actors import pickled
from autotune.backends.ray.cluster import (
    cluster_errors,
    connect,
    endpoints,
    fit,
    node_resources,
    nodes,
)
from autotune.backends.ray.group import Group, Saving
from autotune.backends.ray.group_lifecycle import Fleet
from autotune.backends.ray.health import HeadLost, Nodes, Watch, unreachable
from autotune.backends.ray.turns import Arrived, Inbox, expect, filed
from autotune.backends.worker.messages import Stretch
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
            fit(scaling, node_resources())
        except UserError:
            self._leave_ray()
            raise
        self._hang_timeout = hang_timeout
        self._inbox: Inbox = queue.SimpleQueue()
        self._fleet = Fleet(pickled(train), scaling, self._inbox, hang_timeout)
        self._gauges: dict[str, Gauge] = {}
        self._nodes = nodes()
        self._head_lost = False
        self._fleet.grow(self._nodes)
        head = ray.get_runtime_context().gcs_address
        self._watch = Watch(nodes, head, self._inbox.put, self._nodes)

    # --- the protocol -------------------------------------------------------------------------

    def busy(self) -> int:
        return sum(g.state in ("running", "closing") for g in self._fleet.groups.values())

    def capacity(self) -> int:
        return sum(g.state == "idle" for g in self._fleet.groups.values())

    def next_hardware(self, like: Hardware | None = None) -> Hardware:
        return self._fleet.idle(like).hardware

    def start(self, launch: Launch) -> Hardware:
        group = self._fleet.idle(launch.like)
        group.state, group.launch = "running", launch
        group.clock, group.saving = launch.base, None
        self._ask(group, "start", launch)
        return group.hardware

    def resume(self, trial: int, change: Change | None, save: str | None) -> None:
        group = self._fleet.of(trial)
        if save is not None:
            group.saving = Saving(str(save), group.step, group.clock)
        self._ask(group, "resume", change, str(save) if save else None)

    def stop(self, trial: int, save: str | None) -> None:
        group = self._fleet.of(trial)
        group.state = "closing"
        group.saving = Saving(str(save), group.step, group.clock) if save else None
        self._ask(group, "stop", str(save) if save else None)

    def wait(self, timeout: float | None) -> Signal | None:
        with cluster_errors():
            return self._wait(timeout)

    def _wait(self, timeout: float | None) -> Signal | None:
        end = time.monotonic() + timeout if timeout is not None else float("inf")
        while True:
            now = time.monotonic()
            late = min(self._fleet.groups.values(), key=lambda g: g.deadline, default=None)
            due = late.deadline if late is not None else float("inf")
            if late is not None and due <= now and self._inbox.empty():  # else we are late, not it
                return self._overdue(late)
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
            if not isinstance(arrived, Arrived):
                self._told(arrived)
                continue
            group = self._fleet.groups.get(arrived.group)  # None: it has been given up
            if group is not None and filed(group, arrived):
                return self._concluded(group)

    def wake(self) -> None:
        self._inbox.put(None)

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._watch.close()
        if self._head_lost:  # nobody is left to be told
            self._fleet.groups.clear()
            self._owns_ray = False
            return
        self._fleet.close()
        self._leave_ray()

    def _leave_ray(self) -> None:
        if self._owns_ray:
            self._owns_ray = False
            ray.shutdown()

    # --- turns: all ranks are asked, and all have answered ---------------------------------------

    def _ask(self, group: Group, method: str, *arguments: Any) -> None:
        with cluster_errors():
            refs = [getattr(actor, method).remote(*arguments) for actor in group.actors]
        expect(self._inbox, group, refs, self._hang_timeout)

    def _overdue(self, group: Group) -> Signal | None:
        """A turn that is not over in time: ranks hang, or died with others waiting for them."""
        silent = [r for r in range(len(group.actors)) if r not in group.answers]
        if group.state != "starting" and not turns.troubled(group):
            names = ", ".join(turns.name_of(group, rank) for rank in silent)
            reason = f"worker hung: {names} gave no sign in {self._hang_timeout:g} s"
            return self._broken(group, reason, turns.stacks(group, silent))
        return self._concluded(group)

    def _concluded(self, group: Group) -> Signal | None:
        """What the answers of a turn mean together."""
        group.deadline = float("inf")
        if group.state == "starting":
            self._fleet.started(group)
            return None
        assert group.launch is not None
        trial = group.launch.trial
        dead = [r for r, a in group.answers.items() if isinstance(a, BaseException)]
        if dead:
            return self._died(group, dead)
        answers = {r: a for r, a in sorted(group.answers.items()) if isinstance(a, Stretch)}
        if group.state == "closing":
            saved, _ = turns.checkpoint(group, answers)
            self._fleet.release(group, answers)
            return Stopped(trial, saved)
        if any(a.kind == "raised" for a in answers.values()):
            signal = turns.raised(group, answers)
            self._fleet.replace(group)
            return signal
        if len({(a.kind, a.step) for a in answers.values()}) > 1:
            disagreement = turns.disagreement(group, answers)
            self._fleet.replace(group)
            return disagreement
        if answers[0].kind == "finished":
            self._fleet.release(group, answers)
            return Finished(trial)
        return turns.progress(group, answers)

    def _died(self, group: Group, dead: list[int]) -> Signal:
        """Workers are gone; what the cluster says of it, and whether memory was the reason."""
        assert group.launch is not None
        names = ", ".join(turns.name_of(group, rank) for rank in sorted(dead))
        error = str(group.answers[dead[0]]).strip()
        if isinstance(group.answers[dead[0]], ray.exceptions.OutOfMemoryError):
            reason = f"killed by Ray, as its node was running out of memory: {names}"
            if group.hardware.gpus_per_worker:  # where a microbatch fills the GPU's, not the node's
                return self._broken(group, reason, error)
            trial, closing = group.launch.trial, group.state == "closing"
            self._fleet.replace(group)
            return Stopped(trial) if closing else Raised(trial, error, reason, True)
        lost = unreachable(self._nodes, {group.places[rank].node for rank in dead})
        said = "node lost" if lost else "worker died"
        return self._broken(group, f"{said}: {names}", error, lost)

    def _broken(
        self, group: Group, reason: str, error: str = "", lost: Sequence[str] = ()
    ) -> Signal:
        assert group.launch is not None
        trial, closing = group.launch.trial, group.state == "closing"
        self._fleet.replace(group, lost)
        return Stopped(trial) if closing else Broke(trial, reason, error, node_lost=bool(lost))

    # --- a cluster that changes -----------------------------------------------------------------

    def _told(self, found: Nodes | HeadLost) -> None:
        """Use the nodes that there are now; without a head, leave while the study can be resumed.

        Groups whose node is gone wait for room on another one, or for a new one.
        """
        if isinstance(found, HeadLost):
            self._head_lost = True
            silent = f"has not answered for {found.seconds:.0f} s"
            raise StudyError(f"Ray's head at {found.address} {silent}: resume on another cluster")
        self._nodes = found.nodes
        self._fleet.grow(found.nodes)

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
