"""Warm worker groups on Ray, one trial after another on each.

A group is `num_workers` actors in one placement group, with torch imported and a process group
open. It runs one trial after another; a trial's start is one call of each actor. Every answer of an
actor arrives in one inbox, so that the study's loop sleeps until something happens.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.metrics import Gauge
from ray.util.placement_group import remove_placement_group

from autotune.errors import StudyError, UserError
from autotune.experiment import Scaling
from autotune.metrics import NAMES, Figure
from autotune.pools import Broke, Finished, Launch, Raised, Signal, Stopped, turns
from autotune.pools.answers import Meeting, Place, Stretch
from autotune.pools.cluster import (
    bury,
    cluster_errors,
    connect,
    fit,
    has_room,
    node_resources,
    nodes,
    pickled,
    processes,
    room_for,
)
from autotune.pools.groups import Group, Saving
from autotune.pools.machine import stamp
from autotune.pools.watch import HeadLost, Nodes, Watch, answers
from autotune.trial import Change, Hardware

_GRACE_SECONDS = 5.0  # for the other ranks to say what happened to them, once one has failed
_MEMORY_GRACE_SECONDS = 1.0  # where that is known: the others wait for it in a collective
_CLOSE_SECONDS = 2.0  # for ranks that wait at a milestone to close their trainer
_START_SECONDS = 600.0  # for a group's processes to start and meet
_MOST_STARTS = 3  # groups in a row that may fail to start before the study gives up
_REACH_SECONDS = 1.0  # for a node's own service to answer, when workers on it are gone
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class _Arrived:
    """What came into the inbox: rank `rank`'s answer number `turn` of group `group`."""

    group: int
    turn: int
    rank: int
    answer: Stretch | Place | BaseException | None


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
        self._scaling = scaling
        self._hang_timeout = hang_timeout
        self._train = pickled(train)
        self._inbox: queue.SimpleQueue[_Arrived | Nodes | HeadLost | None] = queue.SimpleQueue()
        self._groups: dict[int, Group] = {}
        self._gauges: dict[str, Gauge] = {}
        self._made = 0
        self._nodes = nodes()
        self._head_lost = False
        self._grow()
        head = ray.get_runtime_context().gcs_address
        self._watch = Watch(nodes, head, self._inbox.put, self._nodes)

    # --- the protocol -------------------------------------------------------------------------

    def busy(self) -> int:
        return sum(g.state in ("running", "closing") for g in self._groups.values())

    def capacity(self) -> int:
        return sum(g.state == "idle" for g in self._groups.values())

    def next_hardware(self, like: Hardware | None = None) -> Hardware:
        return self._idle(like).hardware

    def _idle(self, like: Hardware | None) -> Group:
        idle = [g for g in self._groups.values() if g.state == "idle"]
        return next((g for g in idle if g.hardware == like), idle[0])

    def start(self, launch: Launch) -> Hardware:
        group = self._idle(launch.like)
        group.state, group.launch = "running", launch
        group.clock, group.saving = launch.base, None
        self._ask(group, "start", launch)
        return group.hardware

    def resume(self, trial: int, change: Change | None, save: str | None) -> None:
        group = self._of(trial)
        if save is not None:
            group.saving = Saving(str(save), group.step, group.clock)
        self._ask(group, "resume", change, str(save) if save else None)

    def stop(self, trial: int, save: str | None) -> None:
        group = self._of(trial)
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
            late = min(self._groups.values(), key=lambda g: g.deadline, default=None)
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
            if not isinstance(arrived, _Arrived):
                self._told(arrived)
            elif self._take(arrived):
                return self._concluded(self._groups[arrived.group])

    def wake(self) -> None:
        self._inbox.put(None)

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._watch.close()
        if self._head_lost:  # nobody is left to be told
            self._groups.clear()
            self._owns_ray = False
            return
        burials = [self._kill(group) for group in self._groups.values()]
        for burial in burials:
            burial.join(2 * _CLOSE_SECONDS)
        for group in self._groups.values():
            remove_placement_group(group.placement)
        self._groups.clear()
        self._leave_ray()

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
        for group in self._groups.values():
            group.failed_starts = 0  # those may have been the lost node's
        self._grow()

    def _grow(self) -> None:
        """Open the groups for which there is room, up to as many as were asked for."""
        scaling = self._scaling
        try:
            most, strategy = fit(scaling, [dict(node.resources) for node in self._nodes])
        except UserError:  # for now; the groups that there are wait for room
            return
        most = min(most, scaling.max_concurrent_trials or most)
        while len(self._groups) < most:
            placement = room_for(scaling, strategy)
            group = self._groups[self._made] = Group(self._made, placement, strategy)
            self._made += 1
            self._open(group)

    def _lost_nodes(self, group: Group, ranks: list[int]) -> list[str]:
        """The nodes of these ranks, if nothing answers on any of them any more.

        Ray tells of a worker at once, and of a node only after it has missed some heartbeats.
        """
        known = {node.name: node for node in self._nodes}
        names = sorted({group.places[rank].node for rank in ranks})
        found = [known[name] for name in names if name in known]
        return [] if any(answers(n.host, n.port, _REACH_SECONDS) for n in found) else names

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
        nodes = [node for node in ray.nodes() if node["Alive"] and node["MetricsExportPort"]]
        return [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in nodes]

    # --- turns: every rank is asked, every rank answers -----------------------------------------

    def _of(self, trial: int) -> Group:
        groups = (g for g in self._groups.values() if g.launch and g.launch.trial == trial)
        return next(groups)

    def _ask(self, group: Group, method: str, *arguments: Any) -> None:
        with cluster_errors():
            refs = [getattr(actor, method).remote(*arguments) for actor in group.actors]
        self._expect(group, refs, self._hang_timeout)

    def _expect(self, group: Group, refs: list[Any], seconds: float) -> None:
        group.turn += 1
        group.answers.clear()
        group.deadline = time.monotonic() + seconds
        for rank, ref in enumerate(refs):
            self._forward(ref, group.number, group.turn, rank)

    def _forward(self, ref: Any, group: int, turn: int, rank: int) -> None:
        def done(future: Any) -> None:
            error = future.exception()
            answer = error if error is not None else future.result()
            self._inbox.put(_Arrived(group, turn, rank, answer))

        ref.future().add_done_callback(done)

    def _take(self, arrived: _Arrived) -> bool:
        """File an answer; whether the group's turn is over."""
        group = self._groups.get(arrived.group)
        if group is None or arrived.turn != group.turn:  # given up, or replaced since
            return False
        group.answers[arrived.rank] = arrived.answer
        if len(group.answers) == self._scaling.num_workers:
            return True
        if turns.troubled(group):
            full = isinstance(arrived.answer, Stretch) and arrived.answer.out_of_memory
            grace = _MEMORY_GRACE_SECONDS if full else _GRACE_SECONDS
            group.deadline = min(group.deadline, time.monotonic() + grace)
        return False

    def _overdue(self, group: Group) -> Signal | None:
        """A turn that is not over in time: ranks hang, or died with others waiting for them."""
        silent = [r for r in range(self._scaling.num_workers) if r not in group.answers]
        if group.state != "starting" and not turns.troubled(group):
            names = ", ".join(turns.name_of(group, rank) for rank in silent)
            reason = f"worker hung: {names} gave no sign in {self._hang_timeout:g} s"
            return self._broken(group, reason, turns.stacks(group, silent))
        return self._concluded(group)

    def _concluded(self, group: Group) -> Signal | None:
        """What the answers of a turn mean together."""
        group.deadline = float("inf")
        if group.state == "starting":
            self._started(group)
            return None
        assert group.launch is not None
        trial = group.launch.trial
        dead = [r for r, a in group.answers.items() if isinstance(a, BaseException)]
        if dead:
            return self._died(group, dead)
        answers = {r: a for r, a in sorted(group.answers.items()) if isinstance(a, Stretch)}
        if group.state == "closing":
            saved, _ = turns.checkpoint(group, answers)
            self._release(group, answers)
            return Stopped(trial, saved)
        if any(a.kind == "raised" for a in answers.values()):
            signal = turns.raised(group, answers)
            self._replace(group)
            return signal
        if len({(a.kind, a.step) for a in answers.values()}) > 1:
            disagreement = turns.disagreement(group, answers)
            self._replace(group)
            return disagreement
        if answers[0].kind == "finished":
            self._release(group, answers)
            return Finished(trial)
        return turns.progress(group, answers)

    # --- what a turn can mean -------------------------------------------------------------------

    def _died(self, group: Group, dead: list[int]) -> Signal:
        """Workers are gone; what the cluster says of it, and whether memory was the reason."""
        assert group.launch is not None
        names = ", ".join(turns.name_of(group, rank) for rank in sorted(dead))
        error = str(group.answers[dead[0]]).strip()
        if isinstance(group.answers[dead[0]], ray.exceptions.OutOfMemoryError):
            trial, closing = group.launch.trial, group.state == "closing"
            self._replace(group)
            return Stopped(trial) if closing else Raised(trial, error, f"{names} was killed", True)
        lost = self._lost_nodes(group, dead)
        said = "node lost" if lost else "worker died"
        return self._broken(group, f"{said}: {names}", error, lost)

    def _broken(
        self, group: Group, reason: str, error: str = "", lost: Sequence[str] = ()
    ) -> Signal:
        assert group.launch is not None
        trial, closing = group.launch.trial, group.state == "closing"
        self._replace(group, lost)
        return Stopped(trial) if closing else Broke(trial, reason, error, node_lost=bool(lost))

    def _release(self, group: Group, answers: dict[int, Stretch]) -> None:
        """The group is free for the next trial, unless one of its processes is worn out."""
        group.launch, group.saving = None, None
        if any(a.worn for a in answers.values()):
            self._replace(group)
        else:
            group.state = "idle"

    # --- the life of a group --------------------------------------------------------------------

    def _open(self, group: Group) -> None:
        """Start the group's processes; they are placed and joined when all have answered."""
        scaling = self._scaling
        group.state, group.launch = "starting", None
        group.actors = processes(group.placement, scaling, self._train)
        group.places = []
        cores = 0 if scaling.shared else int(scaling.cpus_per_worker)
        self._expect(group, [a.locate.remote(cores) for a in group.actors], _START_SECONDS)

    def _started(self, group: Group) -> None:
        """One step of starting is over: from processes to places, from places to a group."""
        wrong = [a for a in group.answers.values() if isinstance(a, BaseException)]
        if wrong or len(group.answers) < self._scaling.num_workers:
            return self._failed_start(group, wrong[0] if wrong else None)
        answers: list[Any] = [group.answers[r] for r in range(self._scaling.num_workers)]
        if not group.places:
            group.places = answers
            return self._join(group)
        group.failed_starts = 0
        group.state = "idle"
        return None

    def _join(self, group: Group) -> None:
        """Cores of their own for all ranks or for none, and one backend for all."""
        scaling = self._scaling
        own_cores = not scaling.shared and all(p.cores for p in group.places)
        count = len({p.node for p in group.places})
        meeting = Meeting(own_cores, scaling.gpus_per_worker >= 1, self._hang_timeout, count == 1)
        group.hardware = stamp([p.machine for p in group.places], count, scaling, not own_cores)
        host = group.places[0].host if count > 1 else _LOOPBACK
        port = group.actors[0].serve.remote(host)
        refs = [actor.join.remote(host, port, meeting) for actor in group.actors]
        self._expect(group, refs, _START_SECONDS)

    def _failed_start(self, group: Group, error: BaseException | None) -> None:
        if error is None and not has_room(
            group.placement
        ):  # other jobs hold the cores: wait for them
            group.deadline = time.monotonic() + _START_SECONDS
            return
        group.failed_starts += 1
        if group.failed_starts < _MOST_STARTS:
            self._replace(group)
            return
        what = str(error).strip() if error else f"no answer in {_START_SECONDS:g} s"
        self._kill(group)
        remove_placement_group(group.placement)
        del self._groups[group.number]
        if not self._groups:
            raise StudyError(f"worker processes do not start: {what}")
        print(f"one of the worker groups does not start and is given up: {what}", file=sys.stderr)

    def _replace(self, group: Group, lost: Sequence[str] = ()) -> None:
        """Start the group's processes anew; elsewhere, if nodes are lost that Ray believes in.

        By itself Ray places them again once it has given the node up, and not before.
        """
        if not lost:
            self._kill(group)
        else:
            self._kill(group, group.placement)
            group.placement = room_for(self._scaling, group.strategy, lost)
        self._open(group)

    def _kill(self, group: Group, placement: Any = None) -> threading.Thread:
        """End the group's processes; those that wait at a milestone close their trainer first.

        Then its `placement` is given up, if it is not to be used again.
        """
        actors, group.actors = group.actors, []
        waiting = [
            actors[rank]
            for rank, answer in group.answers.items()
            if group.launch is not None and isinstance(answer, Stretch)
        ]
        group.turn += 1
        group.deadline = float("inf")
        group.answers.clear()
        dead = (actors, waiting, placement, _CLOSE_SECONDS)
        burial = threading.Thread(target=bury, args=dead, name="bury", daemon=True)
        burial.start()
        return burial

    def _leave_ray(self) -> None:
        if self._owns_ray:
            self._owns_ray = False
            ray.shutdown()
