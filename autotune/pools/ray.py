"""Warm worker groups on Ray: the only file that knows Ray.

A group is `num_workers` actors in one placement group, with torch imported and a process group
open. It runs one trial after another; a trial's start is one call of each actor. Every answer of an
actor arrives in one inbox, so that the study's loop sleeps until something happens.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private import ray_constants
from ray.util.metrics import Gauge
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune import storage
from autotune.errors import StudyError, UserError
from autotune.experiment import Scaling
from autotune.metrics import NAMES, Figure
from autotune.pools import Broke, Finished, Launch, Progress, Raised, Signal, Stopped
from autotune.pools.machine import stamp
from autotune.pools.rank import Meeting, Place, Rank, Stretch, stack_of
from autotune.pools.watch import HeadLost, Node, Nodes, Watch, answers
from autotune.recipes import is_recipe_file
from autotune.trial import Change, Checkpoint, Clock, Hardware, Report, slowest

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


@dataclass
class _Saving:
    """A checkpoint that is being written: its ranks' checksums, as they come in."""

    folder: str
    step: int
    clock: Clock
    sums: dict[int, str] = field(default_factory=dict)


@dataclass
class _Group:
    """One worker group. `state` is `starting`, `idle`, `running` or `closing`."""

    number: int
    placement: Any
    strategy: str
    actors: list[Any] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    hardware: Hardware = Hardware()
    state: str = "starting"
    launch: Launch | None = None
    clock: Clock = Clock()
    saving: _Saving | None = None
    step: int = 0
    turn: int = 0
    failed_starts: int = 0
    answers: dict[int, Stretch | Place | BaseException | None] = field(default_factory=dict)
    deadline: float = float("inf")


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
        self._owns_ray = _connect(address)
        try:
            fit(scaling, _node_resources())
        except UserError:
            self._leave_ray()
            raise
        self._scaling = scaling
        self._hang_timeout = hang_timeout
        self._train = _pickled(train)
        self._inbox: queue.SimpleQueue[_Arrived | Nodes | HeadLost | None] = queue.SimpleQueue()
        self._groups: dict[int, _Group] = {}
        self._made = 0
        self._gauges: dict[str, Gauge] = {}
        self._nodes = _nodes()
        self._head_lost = False
        self._grow()
        head = ray.get_runtime_context().gcs_address
        self._watch = Watch(_nodes, head, self._inbox.put, self._nodes)

    # --- the protocol -------------------------------------------------------------------------

    def busy(self) -> int:
        return sum(g.state in ("running", "closing") for g in self._groups.values())

    def capacity(self) -> int:
        return sum(g.state == "idle" for g in self._groups.values())

    def next_hardware(self) -> Hardware:
        return self._idle().hardware

    def _idle(self) -> _Group:
        return next(g for g in self._groups.values() if g.state == "idle")

    def start(self, launch: Launch) -> Hardware:
        group = self._idle()
        group.state, group.launch = "running", launch
        group.clock, group.saving = launch.base, None
        self._ask(group, "start", launch)
        return group.hardware

    def resume(self, trial: int, change: Change | None, save: str | None) -> None:
        group = self._of(trial)
        if save is not None:
            group.saving = _Saving(str(save), group.step, group.clock)
        self._ask(group, "resume", change, str(save) if save else None)

    def stop(self, trial: int, save: str | None) -> None:
        group = self._of(trial)
        group.state = "closing"
        group.saving = _Saving(str(save), group.step, group.clock) if save else None
        self._ask(group, "stop", str(save) if save else None)

    def wait(self, timeout: float | None) -> Signal | None:
        with _cluster_errors():
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
            placement = _placement(scaling, strategy)
            group = self._groups[self._made] = _Group(self._made, placement, strategy)
            self._made += 1
            self._open(group)

    def _lost_nodes(self, group: _Group, ranks: list[int]) -> list[str]:
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

    def _of(self, trial: int) -> _Group:
        groups = (g for g in self._groups.values() if g.launch and g.launch.trial == trial)
        return next(groups)

    def _ask(self, group: _Group, method: str, *arguments: Any) -> None:
        with _cluster_errors():
            refs = [getattr(actor, method).remote(*arguments) for actor in group.actors]
        self._expect(group, refs, self._hang_timeout)

    def _expect(self, group: _Group, refs: list[Any], seconds: float) -> None:
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
        if _troubled(group):
            full = isinstance(arrived.answer, Stretch) and arrived.answer.out_of_memory
            grace = _MEMORY_GRACE_SECONDS if full else _GRACE_SECONDS
            group.deadline = min(group.deadline, time.monotonic() + grace)
        return False

    def _overdue(self, group: _Group) -> Signal | None:
        """A turn that is not over in time: ranks hang, or died with others waiting for them."""
        silent = [r for r in range(self._scaling.num_workers) if r not in group.answers]
        if group.state != "starting" and not _troubled(group):
            names = ", ".join(self._name(group, rank) for rank in silent)
            reason = f"worker hung: {names} gave no sign in {self._hang_timeout:g} s"
            return self._broken(group, reason, _stacks(group, silent))
        return self._concluded(group)

    def _concluded(self, group: _Group) -> Signal | None:
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
            saved, _ = self._checkpoint(group, answers)
            self._release(group, answers)
            return Stopped(trial, saved)
        if any(a.kind == "raised" for a in answers.values()):
            return self._raised(group, answers)
        if len({(a.kind, a.step) for a in answers.values()}) > 1:
            return self._disagree(group, answers)
        if answers[0].kind == "finished":
            self._release(group, answers)
            return Finished(trial)
        return self._progress(group, answers)

    # --- what a turn can mean -------------------------------------------------------------------

    def _progress(self, group: _Group, answers: dict[int, Stretch]) -> Progress:
        assert group.launch is not None
        saved, unsaved = self._checkpoint(group, answers)
        group.clock = group.clock + slowest([a.clock for a in answers.values()])
        first = answers[0]
        group.step = first.step
        seconds = group.clock.seconds(group.launch.clock)
        report = Report(first.step, seconds, first.metrics or {}, group.clock)
        can_save = all(a.can_save for a in answers.values())
        saving = group.saving is not None
        return Progress(group.launch.trial, report, can_save, saved, saving, unsaved)

    def _checkpoint(
        self, group: _Group, answers: dict[int, Stretch]
    ) -> tuple[Checkpoint | None, str]:
        """The checkpoint that was asked for once all ranks have written it, or why they cannot."""
        saving = group.saving
        if saving is None:
            return None, ""
        for rank, answer in answers.items():
            if answer.saved is not None and answer.saved.folder == saving.folder:
                saving.sums[rank] = answer.saved.checksum
        unsaved = next((a.unsaved for a in answers.values() if a.unsaved), "")
        ranks = range(self._scaling.num_workers)
        if unsaved:
            group.saving = None
            return None, unsaved
        if len(saving.sums) < self._scaling.num_workers:
            return None, ""
        group.saving = None
        try:
            found = {*storage.names(saving.folder)}
        except OSError as error:
            return None, str(error)
        if not {f"rank-{rank}.pt" for rank in ranks} <= found:
            return None, ""  # written on another node's own disk
        sums = tuple(saving.sums[rank] for rank in ranks)
        return Checkpoint(saving.step, saving.folder, saving.clock, sums), ""

    def _raised(self, group: _Group, answers: dict[int, Stretch]) -> Raised | Broke:
        assert group.launch is not None
        raised = {r: a for r, a in answers.items() if a.kind == "raised"}
        first = next(iter(raised.values()))
        texts: dict[str, list[int]] = {}
        for rank, answer in raised.items():
            texts.setdefault(answer.error, []).append(rank)
        parts = [f"{_ranks(ranks)}:\n{text}" for text, ranks in texts.items()]
        silent = [r for r in range(self._scaling.num_workers) if r not in raised]
        if silent:
            parts.append(f"{_ranks(silent)}: raised nothing")
        memory = any(a.out_of_memory for a in raised.values())
        cause = (a.reason for a in raised.values() if a.out_of_memory or a.damaged)
        reason = next(cause, first.reason)
        trial = group.launch.trial
        self._replace(group)
        damaged = any(a.damaged for a in raised.values())
        if any(a.unread for a in raised.values()) and not (memory or damaged):
            return Broke(trial, f"the checkpoint could not be read: {reason}", "\n\n".join(parts))
        return Raised(trial, "\n\n".join(parts), reason, memory, damaged)

    def _disagree(self, group: _Group, answers: dict[int, Stretch]) -> Raised:
        assert group.launch is not None
        at = [f"rank {r} {a.kind} at step {a.step}" for r, a in answers.items()]
        trial = group.launch.trial
        self._replace(group)
        text = f"the ranks are not at the same milestone: {', '.join(at)}"
        return Raised(trial, text, text)

    def _died(self, group: _Group, dead: list[int]) -> Signal:
        """Workers are gone; what the cluster says of it, and whether memory was the reason."""
        assert group.launch is not None
        names = ", ".join(self._name(group, rank) for rank in sorted(dead))
        error = str(group.answers[dead[0]]).strip()
        lost = self._lost_nodes(group, dead)
        if lost:
            return self._broken(group, f"node lost: {names}", error, lost)
        if isinstance(group.answers[dead[0]], ray.exceptions.OutOfMemoryError):
            trial, closing = group.launch.trial, group.state == "closing"
            self._replace(group)
            return Stopped(trial) if closing else Raised(trial, error, f"{names} was killed", True)
        return self._broken(group, f"worker died: {names}", error)

    def _broken(
        self, group: _Group, reason: str, error: str = "", lost: Sequence[str] = ()
    ) -> Signal:
        assert group.launch is not None
        trial, closing = group.launch.trial, group.state == "closing"
        self._replace(group, lost)
        return Stopped(trial) if closing else Broke(trial, reason, error, bool(lost))

    def _name(self, group: _Group, rank: int) -> str:
        place = group.places[rank]
        return f"rank {rank} (pid {place.pid} on {place.host})"

    def _release(self, group: _Group, answers: dict[int, Stretch]) -> None:
        """The group is free for the next trial, unless one of its processes is worn out."""
        group.launch, group.saving = None, None
        if any(a.worn for a in answers.values()):
            self._replace(group)
        else:
            group.state = "idle"

    # --- the life of a group --------------------------------------------------------------------

    def _open(self, group: _Group) -> None:
        """Start the group's processes; they are placed and joined when all have answered."""
        scaling = self._scaling
        group.state, group.launch = "starting", None
        actor = ray.remote(_Worker).options
        group.actors = [
            actor(
                num_cpus=scaling.cpus_per_worker,
                num_gpus=scaling.gpus_per_worker,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group.placement, placement_group_bundle_index=rank
                ),
                runtime_env={"env_vars": _worker_environment(scaling)},
            ).remote(self._train, sys.path, rank, scaling.num_workers)
            for rank in range(scaling.num_workers)
        ]
        group.places = []
        cores = 0 if scaling.shared else int(scaling.cpus_per_worker)
        self._expect(group, [a.locate.remote(cores) for a in group.actors], _START_SECONDS)

    def _started(self, group: _Group) -> None:
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

    def _join(self, group: _Group) -> None:
        """Cores of their own for all ranks or for none, and one backend for all."""
        scaling = self._scaling
        own_cores = not scaling.shared and all(p.cores for p in group.places)
        nodes = len({p.node for p in group.places})
        meeting = Meeting(own_cores, scaling.gpus_per_worker >= 1, self._hang_timeout, nodes == 1)
        group.hardware = stamp([p.machine for p in group.places], nodes, scaling, not own_cores)
        host = group.places[0].host if nodes > 1 else _LOOPBACK
        port = group.actors[0].serve.remote(host)
        refs = [actor.join.remote(host, port, meeting) for actor in group.actors]
        self._expect(group, refs, _START_SECONDS)

    def _failed_start(self, group: _Group, error: BaseException | None) -> None:
        if error is None and not _has_room(group):  # other jobs hold the cores: wait for them
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

    def _replace(self, group: _Group, lost: Sequence[str] = ()) -> None:
        """Start the group's processes anew; elsewhere, if nodes are lost that Ray believes in.

        By itself Ray places them again once it has given the node up, and not before.
        """
        if not lost:
            self._kill(group)
        else:
            self._kill(group, group.placement)
            group.placement = _placement(self._scaling, group.strategy, lost)
        self._open(group)

    def _kill(self, group: _Group, placement: Any = None) -> threading.Thread:
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
        dead = (actors, waiting, placement)
        burial = threading.Thread(target=_bury, args=dead, name="bury", daemon=True)
        burial.start()
        return burial

    def _leave_ray(self) -> None:
        if self._owns_ray:
            self._owns_ray = False
            ray.shutdown()


class _Worker(Rank):
    """A rank as a Ray actor: it also knows its node."""

    def locate(self, cores: int) -> Place:
        context = ray.get_runtime_context()
        return self.place(context.get_node_id(), ray.util.get_node_ip_address(), cores)


def fit(scaling: Scaling, nodes: list[dict[str, float]]) -> tuple[int, str]:
    """How many trials the nodes hold at once, and Ray's placement strategy for each.

    One trial's workers are packed on one node where they fit on one, else over several, unless
    `placement_strategy` says otherwise.

    Raises:
        UserError: not even one trial fits; says what is asked for and what there is.
    """
    need = {"CPU": scaling.cpus_per_worker, "GPU": scaling.gpus_per_worker}
    need = {k: v for k, v in need.items() if v}
    workers = [int(min((n.get(k, 0.0) + 1e-9) // v for k, v in need.items())) for n in nodes]
    strategy, size = scaling.placement_strategy, scaling.num_workers
    packed = sum(w // size for w in workers) if strategy in ("PACK", "STRICT_PACK") else 0
    if packed:
        return packed, "STRICT_PACK"
    most = _apart(workers, size) if strategy == "STRICT_SPREAD" else sum(workers) // size
    if most and strategy != "STRICT_PACK":
        return most, strategy
    where = {"STRICT_PACK": " on one node", "STRICT_SPREAD": " on different nodes"}
    asked = " and ".join(f"{v:g} {k}" for k, v in need.items())
    have = "; ".join(" and ".join(f"{n.get(k, 0.0):g} {k}" for k in ("CPU", "GPU")) for n in nodes)
    raise UserError(
        f"a trial of {size} workers with {asked} each can never fit{where.get(strategy, '')}: "
        f"the cluster has {len(nodes)} node{'s' * (len(nodes) != 1)} ({have})"
    )


def _placement(scaling: Scaling, strategy: str, lost: Sequence[str] = ()) -> Any:
    """Room for a group, on none of the nodes that are `lost`."""
    bundle = {"CPU": scaling.cpus_per_worker, "GPU": scaling.gpus_per_worker}
    bundles = [{k: v for k, v in bundle.items() if v}] * scaling.num_workers
    if not lost:
        return placement_group(bundles, strategy=strategy)
    elsewhere = [{"ray.io/node-id": f"!in({','.join(lost)})"}] * scaling.num_workers
    return placement_group(bundles, strategy=strategy, bundle_label_selector=elsewhere)


def _apart(workers: list[int], size: int) -> int:
    """How many trials of `size` workers fit, none of which has two workers on a node."""
    trials = 0
    while sum(min(w, trials + 1) for w in workers) >= (trials + 1) * size:
        trials += 1
    return trials


def cluster() -> str:
    """Start Ray on this machine, run one task, and say what it has."""
    owns = _connect(None)
    try:
        nodes = _node_resources()
        ray.get(ray.remote(lambda: None).remote(), timeout=60)
    finally:
        if owns:
            ray.shutdown()
    parts = "; ".join(f"{n.get('CPU', 0):g} CPU, {n.get('GPU', 0):g} GPU" for n in nodes)
    return f"starts and runs a task ({parts})"


def _connect(address: str | None) -> bool:
    """Connect to Ray; whether this process started it and must shut it down."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # trials are what is timed: 15 by default
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        local = {"include_dashboard": False, "object_store_memory": 256 * 2**20}
        with _on_loopback():
            ray.init(address="local", **options, **local)
        return True
    try:
        _reach(address)
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"cannot connect to Ray at {address!r}: {reason}") from None
    return True


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray that is started in here serves this machine alone; by itself it listens everywhere.

    The switch is Ray's own, off by default only where a firewall would ask the user. Whoever wants
    a cluster that others reach starts one, or sets the variable to 1.
    """
    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    if name in os.environ:
        yield
        return
    before = ray_constants.ENABLE_RAY_CLUSTER
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[name]


def _reach(address: str) -> None:
    """Raise a ConnectionError at once where nobody answers: Ray would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise ConnectionError(error) from None


def _node_resources() -> list[dict[str, float]]:
    return [dict(node.resources) for node in _nodes()]


def _nodes() -> tuple[Node, ...]:
    """The nodes that are alive, in the order of their names."""
    alive = (node for node in ray.nodes() if node["Alive"])
    found = (
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["NodeManagerPort"],
            tuple(sorted(node["Resources"].items())),
        )
        for node in alive
    )
    return tuple(sorted(found, key=lambda node: node.name))


def _worker_environment(scaling: Scaling) -> dict[str, str]:
    threads = str(max(int(scaling.cpus_per_worker), 1))
    variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if not scaling.gpus_per_worker:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables


def _pickled(train: Callable[[dict[str, Any]], Any]) -> bytes:
    """The trainer for the workers: a recipe file's module by value, others by their name."""
    module = sys.modules.get(train.__module__)
    if module is not None and is_recipe_file(module):
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = ray.cloudpickle.dumps(train)
    except Exception as error:
        raise UserError(f"the trainer cannot be sent to workers: {error}") from None
    return pickled


@contextlib.contextmanager
def _cluster_errors() -> Iterator[None]:
    """What Ray itself raises ends the study: the cluster is gone, and the study can be resumed."""
    try:
        yield
    except ray.exceptions.RayError as error:
        reason = str(error).strip().partition("\n")[0]
        raise StudyError(f"Ray: {type(error).__name__}: {reason}") from error


def _bury(actors: list[Any], waiting: list[Any], placement: Any) -> None:
    """Let the waiting ones close their trainer, for a moment, then end all of the processes.

    Beside the loop, since a trainer's `finally` may wait for a rank that is no more.
    """
    with contextlib.suppress(Exception):  # whatever goes wrong here, they are to be ended
        closing = [actor.stop.remote(None) for actor in waiting]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
    for actor in actors:
        with contextlib.suppress(Exception):
            ray.kill(actor, no_restart=True)
    if placement is not None:
        with contextlib.suppress(Exception):
            remove_placement_group(placement)


def _has_room(group: _Group) -> bool:
    """Whether the cluster has given the group its resources."""
    state: str = ray.util.placement_group_table(group.placement)["state"]
    return state == "CREATED"


def _troubled(group: _Group) -> bool:
    """Whether a rank has died or raised in this turn, so that the others may never answer."""
    wrong = (BaseException, Stretch)
    answers = [a for a in group.answers.values() if isinstance(a, wrong)]
    return any(isinstance(a, BaseException) or a.kind == "raised" for a in answers)


def _stacks(group: _Group, ranks: list[int]) -> str:
    """Where the ranks that run on this machine are stuck, innermost call first."""
    here = [r for r in ranks if os.path.exists(group.places[r].stacks)]
    return "\n".join(f"rank {r} is at:\n{stack_of(group.places[r])}" for r in here)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
