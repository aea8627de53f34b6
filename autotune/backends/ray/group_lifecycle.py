"""The life of worker groups: opened as the cluster has resources, joined, replaced and ended.

A group is `num_workers` actors in one placement group. First they start and return their places;
then they join a process group, and the group is idle.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from autotune.backends.ray.actors import (
    is_reserved,
    processes,
    release_placement,
    reserve,
    terminate,
)
from autotune.backends.ray.health import Node
from autotune.backends.ray.resources import fit
from autotune.backends.ray.turns import Group, Inbox, abandon, begin, trial_answers
from autotune.backends.worker.hardware_probe import fingerprint
from autotune.backends.worker.messages import Place, Rendezvous
from autotune.errors import StudyError, UserError
from autotune.trial import Hardware
from autotune.trial.scaling import Scaling

_CLOSE_SECONDS = 2.0  # for ranks that wait at a milestone to close their trainer
_START_SECONDS = 600.0  # for a group's processes to start and meet
_MOST_STARTS = 3  # groups in a row that may fail to start before the study gives up
_LOOPBACK = "127.0.0.1"


class WorkerGroups:
    """The worker groups of a pool, as many as fit, also as the cluster grows.

    Args:
        train: the trainer, pickled.
        scaling: workers of one trial; `max_concurrent_trials` bounds the number of groups.
        inbox: takes the answers of all of their processes.
        collective_seconds: how long a rank waits for the others of its process group.
    """

    def __init__(
        self, train: bytes, scaling: Scaling, inbox: Inbox, collective_seconds: float
    ) -> None:
        self.groups: dict[int, Group] = {}
        self._train, self._scaling, self._inbox = train, scaling, inbox
        self._collective_seconds = collective_seconds
        self._made = 0

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

    def grow(self, nodes: Sequence[Node]) -> None:
        """Open as many groups as fit on these nodes, at most the number that was asked for."""
        for group in self.groups.values():
            group.failed_starts = 0  # those may have been a lost node's
        try:
            most, strategy = fit(self._scaling, [dict(node.resources) for node in nodes])
        except UserError:  # for now: the groups that there are wait for resources
            return
        most = min(most, self._scaling.max_concurrent_trials or most)
        while len(self.groups) < most:
            placement = reserve(self._scaling, strategy)
            group = self.groups[self._made] = Group(self._made, placement, strategy)
            self._made += 1
            self._open(group)

    # --- from processes to places, from places to a group ---------------------------------------

    def _open(self, group: Group) -> None:
        """Start the group's processes and ask where they are."""
        scaling = self._scaling
        group.state, group.launch = "starting", None
        group.actors = processes(group.placement, scaling, self._train)
        group.places = []
        cores = 0 if scaling.shared else int(scaling.cpus)
        calls = [a.locate.remote(cores) for a in group.actors]
        begin(self._inbox, group, calls, _START_SECONDS)

    def started(self, group: Group) -> None:
        """Take the next step of starting: from processes to places, from places to a group."""
        if group.failed or len(group.answers) < self._scaling.num_workers:
            return self._failed_start(group, next(iter(group.failed.values()), None))
        if not group.places:
            places = [place for _, place in sorted(group.answers.items())]
            group.places = [place for place in places if isinstance(place, Place)]
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
        host = group.places[0].host if count > 1 else _LOOPBACK
        port = group.actors[0].serve.remote(host)
        calls = [actor.join.remote(host, port, rendezvous) for actor in group.actors]
        begin(self._inbox, group, calls, _START_SECONDS)

    def _failed_start(self, group: Group, error: BaseException | None) -> None:
        if error is None and not is_reserved(group.placement):  # other jobs hold the cores: wait
            group.deadline = time.monotonic() + _START_SECONDS
            return
        group.failed_starts += 1
        if group.failed_starts < _MOST_STARTS:
            self.replace(group)
            return
        cause = getattr(error, "cause", None) or error  # of an error on a worker, without its calls
        what = str(cause).strip() if error else f"no answer in {_START_SECONDS:g} s"
        self._terminate(group)
        release_placement(group.placement)
        del self.groups[group.number]
        if not self.groups:
            raise StudyError(f"worker processes do not start: {what}")
        print(f"one of the worker groups does not start and is dropped: {what}", file=sys.stderr)

    # --- from one trial to the next -------------------------------------------------------------

    def release(self, group: Group) -> None:
        """Free the group for the next trial; start it anew if one of its processes needs that."""
        group.launch, group.checkpoint = None, None
        if any(answer.must_restart for answer in trial_answers(group).values()):
            self.replace(group)
        else:
            group.state = "idle"

    def replace(self, group: Group, lost_nodes: Sequence[str] = ()) -> None:
        """Start the group's processes anew; elsewhere if nodes are lost that Ray still counts.

        By itself Ray places them again once it has given the node up, and not before.
        """
        if not lost_nodes:
            self._terminate(group)
        else:
            self._terminate(group, group.placement)
            group.placement = reserve(self._scaling, group.strategy, lost_nodes)
        self._open(group)

    def _terminate(self, group: Group, placement: Any = None) -> threading.Thread:
        """End the group's processes; ranks that wait at a milestone close their trainer first.

        Then `placement` is released, if it is given.
        """
        actors, group.actors = group.actors, []
        answered = trial_answers(group) if group.launch is not None else {}
        waiting = [actors[rank] for rank in answered]
        abandon(group)
        arguments = (actors, waiting, placement, _CLOSE_SECONDS)
        thread = threading.Thread(target=terminate, args=arguments, name="terminate", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """End all groups and release their placement groups."""
        threads = [self._terminate(group) for group in self.groups.values()]
        for thread in threads:
            thread.join(2 * _CLOSE_SECONDS)
        for group in self.groups.values():
            release_placement(group.placement)
        self.groups.clear()
