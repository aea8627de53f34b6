"""The life of worker groups: opened as there are resources, joined, replaced and ended.

A group is `num_workers` processes in one place. First they start and return their places; then the
first one serves a store, at which all of them join a process group, and the group is idle. What
starts processes and ends them is a backend's (`Processes`).
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait as completed
from typing import Any, Protocol

from autotune.backends.groups.resources import Resources, fit
from autotune.backends.groups.turns import Group, Inbox, abandon, begin, trial_answers
from autotune.backends.worker.hardware_probe import fingerprint
from autotune.backends.worker.messages import Place, Rendezvous
from autotune.errors import StudyError, UserError
from autotune.trial import Hardware
from autotune.trial.scaling import Scaling

_CLOSE_SECONDS = 2.0  # for ranks that wait at a milestone to close their trainer
_START_SECONDS = 600.0  # for a group's processes to start and meet
_MOST_STARTS = 3  # groups in a row that may fail to start before the study gives up
_LOOPBACK = "127.0.0.1"


class Processes(Protocol):
    """Starts and ends the processes of worker groups; a placement is the room of one group."""

    def reserve(self, strategy: str, lost: Sequence[str] = ()) -> Any:
        """Room for a group, on none of the nodes `lost`."""
        ...

    def is_reserved(self, placement: Any) -> bool:
        """Whether the room is there, and not only asked for."""
        ...

    def release(self, placement: Any) -> None:
        """Give the room back; what still runs there is ended."""
        ...

    def start(self, placement: Any) -> list[Any]:
        """Start the processes of a group, in the order of their ranks."""
        ...

    def call(self, process: Any, method: str, *arguments: Any) -> Future[Any]:
        """Call a method of the `Rank` in a process; the future fails if the process is gone."""
        ...

    def kill(self, process: Any) -> None:
        """End a process at once."""
        ...


class WorkerGroups:
    """The worker groups of a pool, as many as fit, also as a cluster grows.

    Args:
        processes: starts and ends their processes.
        scaling: workers of one trial; `max_concurrent_trials` bounds the number of groups.
        inbox: takes the answers of all of their processes.
        collective_seconds: how long a rank waits for the others of its process group.
    """

    def __init__(
        self, processes: Processes, scaling: Scaling, inbox: Inbox, collective_seconds: float
    ) -> None:
        self.groups: dict[int, Group] = {}
        self._processes, self._scaling, self._inbox = processes, scaling, inbox
        self._collective_seconds = collective_seconds
        self._made = 0
        self._told: set[str] = set()

    def idle(self, comparable_to: Hardware | None) -> Group:
        """An idle group, if possible on hardware whose times can be compared with this one's."""
        idle = [g for g in self.groups.values() if g.state == "idle"]
        return next((g for g in idle if g.hardware == comparable_to), idle[0])

    def of(self, trial: int) -> Group:
        """The group that runs a trial."""
        return next(g for g in self.groups.values() if g.launch and g.launch.trial == trial)

    def waiting_for(self, call: Future[Any]) -> Group | None:
        """The group whose turn a call belongs to; None if that turn was abandoned."""
        return next((g for g in self.groups.values() if call in g.unanswered), None)

    def call(self, group: Group, seconds: float, method: str, *arguments: Any) -> None:
        """Begin a turn: call a method on all ranks of a group."""
        calls = [self._processes.call(actor, method, *arguments) for actor in group.actors]
        begin(self._inbox, group, calls, seconds)

    def grow(self, nodes: Sequence[Resources]) -> None:
        """Open as many groups as fit on these nodes, at most the number that was asked for."""
        for group in self.groups.values():
            group.failed_starts = 0  # those may have been a lost node's
        try:
            most, strategy = fit(self._scaling, nodes)
        except UserError:  # for now: the groups that there are wait for resources
            return
        most = min(most, self._scaling.max_concurrent_trials or most)
        while len(self.groups) < most:
            placement = self._processes.reserve(strategy)
            group = self.groups[self._made] = Group(self._made, placement, strategy)
            self._made += 1
            self._open(group)

    # --- from processes to places, from places to a group ---------------------------------------

    def _open(self, group: Group) -> None:
        """Start the group's processes and ask where they are."""
        scaling = self._scaling
        group.state, group.launch = "starting", None
        group.actors = self._processes.start(group.placement)
        group.places, group.port = [], 0
        cores = 0 if scaling.shared else int(scaling.cpus)
        self.call(group, _START_SECONDS, "locate", cores, scaling.gpus)

    def started(self, group: Group) -> None:
        """Take the next step of starting: to places, to a store, to a group."""
        if group.failed or len(group.answers) < self._scaling.num_workers:
            return self._failed_start(group, next(iter(group.failed.values()), None))
        if not group.places:
            places = [place for _, place in sorted(group.answers.items())]
            group.places = [place for place in places if isinstance(place, Place)]
            return self.call(group, _START_SECONDS, "serve", _host(group))
        if not group.port:
            group.port = int(group.answers[0])  # type: ignore[arg-type]
            return self._join(group)
        group.failed_starts = 0
        group.state = "idle"
        return None

    def _join(self, group: Group) -> None:
        """Have the ranks join a process group; either all have cores of their own or none has."""
        scaling = self._scaling
        own_cores = not scaling.shared and all(p.cores for p in group.places)
        count = len({p.node for p in group.places})
        rendezvous = Rendezvous(own_cores, scaling.gpus, self._collective_seconds, count == 1)
        machines = [p.machine for p in group.places]
        group.hardware = fingerprint(machines, count, scaling, shared=not own_cores)
        self.call(group, _START_SECONDS, "join", _host(group), group.port, rendezvous)

    def _failed_start(self, group: Group, error: BaseException | None) -> None:
        waits = error is None and not self._processes.is_reserved(group.placement)
        if waits:  # other jobs hold the cores
            group.deadline = time.monotonic() + _START_SECONDS
            return
        group.failed_starts += 1
        if group.failed_starts < _MOST_STARTS:
            self.replace(group)
            return
        cause = getattr(error, "cause", None) or error  # of an error on a worker, without its calls
        what = str(cause).strip() if error else f"no answer in {_START_SECONDS:g} s"
        self._terminate(group)
        self._processes.release(group.placement)
        del self.groups[group.number]
        if not self.groups:
            raise StudyError(f"worker processes do not start: {what}")
        print(f"one of the worker groups does not start and is dropped: {what}", file=sys.stderr)

    # --- from one trial to the next -------------------------------------------------------------

    def release(self, group: Group) -> None:
        """Free the group for the next trial; start it anew if one of its processes needs that."""
        launch, group.launch, group.checkpoint = group.launch, None, None
        answers = trial_answers(group).values()
        if why := next((a.must_restart for a in answers if a.must_restart), ""):
            if launch is not None and all(a.kind != "raised" for a in answers):
                self._tell(launch.trial, why)
            self.replace(group)
        else:
            group.state = "idle"

    def _tell(self, trial: int, why: str) -> None:
        """Say why a trial costs its processes, once for each reason: others may follow."""
        reason = re.split(r"[:\d]", why)[0]
        if reason not in self._told:
            self._told.add(reason)
            print(f"workers are started anew after trial {trial}: {why}", file=sys.stderr)

    def replace(self, group: Group, lost_nodes: Sequence[str] = ()) -> None:
        """Start the group's processes anew; elsewhere if nodes are lost that still count.

        By itself Ray places them again once it has given the node up, and not before.
        """
        if not lost_nodes:
            self._terminate(group)
        else:
            self._terminate(group, release=True)
            group.placement = self._processes.reserve(group.strategy, lost_nodes)
        self._open(group)

    def _terminate(self, group: Group, release: bool = False) -> threading.Thread:
        """End the group's processes; ranks that wait at a milestone close their trainer first.

        Then the group's placement is released, if that is asked for. It is done on a thread, as a
        trainer's `finally` may wait for a rank that is gone.
        """
        actors, group.actors = group.actors, []
        answered = trial_answers(group) if group.launch is not None else {}
        waiting = [actors[rank] for rank in answered]
        abandon(group)
        arguments = (self._processes, actors, waiting, group.placement if release else None)
        thread = threading.Thread(target=terminate, args=arguments, name="terminate", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """End all groups and release their placements."""
        threads = [self._terminate(group) for group in self.groups.values()]
        for thread in threads:
            thread.join(2 * _CLOSE_SECONDS)
        for group in self.groups.values():
            self._processes.release(group.placement)
        self.groups.clear()


def _host(group: Group) -> str:
    """Where the group's ranks meet: on this interface of the first one's machine."""
    several = len({place.node for place in group.places}) > 1
    return group.places[0].host if several else _LOOPBACK


def terminate(
    processes: Processes,
    actors: Sequence[Any],
    waiting: Sequence[Any] = (),
    placement: Any = None,
    seconds: float = _CLOSE_SECONDS,
) -> None:
    """Have the waiting ones close their trainer, for some seconds at most, then end all actors.

    Afterwards `placement` is released, if it is given.
    """
    with contextlib.suppress(Exception):  # whatever goes wrong here, they are to be ended
        completed([processes.call(actor, "stop", None) for actor in waiting], timeout=seconds)
    for actor in actors:
        with contextlib.suppress(Exception):
            processes.kill(actor)
    if placement is not None:
        with contextlib.suppress(Exception):
            processes.release(placement)
