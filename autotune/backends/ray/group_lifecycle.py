"""The life of worker groups: opened as the cluster has room, joined, replaced and ended.

A group is `num_workers` actors in one placement group. First they are started and say where they
are; then they are joined by a process group, and the group is idle.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from autotune.backends.ray.actors import bury, give_up, has_room, processes, room_for
from autotune.backends.ray.cluster import fit
from autotune.backends.ray.group import Group
from autotune.backends.ray.health import Node
from autotune.backends.ray.turns import Inbox, expect
from autotune.backends.worker.hardware_probe import stamp
from autotune.backends.worker.messages import Meeting, Stretch
from autotune.errors import StudyError, UserError
from autotune.trial import Hardware
from autotune.trial.scaling import Scaling

_CLOSE_SECONDS = 2.0  # for ranks that wait at a milestone to close their trainer
_START_SECONDS = 600.0  # for a group's processes to start and meet
_MOST_STARTS = 3  # groups in a row that may fail to start before the study gives up
_LOOPBACK = "127.0.0.1"


class Fleet:
    """The worker groups of a pool, as many as fit, also as the cluster grows.

    Args:
        train: the trainer, pickled.
        scaling: workers of one trial; `max_concurrent_trials` bounds the number of groups.
        inbox: takes the answers of all of their processes.
        collective_seconds: for how long a rank waits for the others of its process group.
    """

    def __init__(
        self, train: bytes, scaling: Scaling, inbox: Inbox, collective_seconds: float
    ) -> None:
        self.groups: dict[int, Group] = {}
        self._train, self._scaling, self._inbox = train, scaling, inbox
        self._collective_seconds = collective_seconds
        self._made = 0

    def idle(self, like: Hardware | None) -> Group:
        """An idle group, on hardware `like` that if there is one."""
        idle = [g for g in self.groups.values() if g.state == "idle"]
        return next((g for g in idle if g.hardware == like), idle[0])

    def of(self, trial: int) -> Group:
        """The group that runs a trial."""
        return next(g for g in self.groups.values() if g.launch and g.launch.trial == trial)

    def grow(self, nodes: Sequence[Node]) -> None:
        """Open the groups for which these nodes have room, up to as many as were asked for."""
        for group in self.groups.values():
            group.failed_starts = 0  # those may have been a lost node's
        try:
            most, strategy = fit(self._scaling, [dict(node.resources) for node in nodes])
        except UserError:  # for now; the groups that there are wait for room
            return
        most = min(most, self._scaling.max_concurrent_trials or most)
        while len(self.groups) < most:
            placement = room_for(self._scaling, strategy)
            group = self.groups[self._made] = Group(self._made, placement, strategy)
            self._made += 1
            self._open(group)

    # --- from processes to places, from places to a group ---------------------------------------

    def _open(self, group: Group) -> None:
        """Start the group's processes; they are placed and joined when all have answered."""
        scaling = self._scaling
        group.state, group.launch = "starting", None
        group.actors = processes(group.placement, scaling, self._train)
        group.places = []
        cores = 0 if scaling.shared else int(scaling.cpus_per_worker)
        refs = [a.locate.remote(cores) for a in group.actors]
        expect(self._inbox, group, refs, _START_SECONDS)

    def started(self, group: Group) -> None:
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
        whole_gpus = scaling.gpus_per_worker >= 1
        meeting = Meeting(own_cores, whole_gpus, self._collective_seconds, count == 1)
        group.hardware = stamp([p.machine for p in group.places], count, scaling, not own_cores)
        host = group.places[0].host if count > 1 else _LOOPBACK
        port = group.actors[0].serve.remote(host)
        refs = [actor.join.remote(host, port, meeting) for actor in group.actors]
        expect(self._inbox, group, refs, _START_SECONDS)

    def _failed_start(self, group: Group, error: BaseException | None) -> None:
        if error is None and not has_room(group.placement):  # other jobs hold the cores: wait
            group.deadline = time.monotonic() + _START_SECONDS
            return
        group.failed_starts += 1
        if group.failed_starts < _MOST_STARTS:
            self.replace(group)
            return
        what = str(error).strip() if error else f"no answer in {_START_SECONDS:g} s"
        self._kill(group)
        give_up(group.placement)
        del self.groups[group.number]
        if not self.groups:
            raise StudyError(f"worker processes do not start: {what}")
        print(f"one of the worker groups does not start and is given up: {what}", file=sys.stderr)

    # --- from one trial to the next -------------------------------------------------------------

    def release(self, group: Group, answers: dict[int, Stretch]) -> None:
        """The group is free for the next trial, unless one of its processes is worn out."""
        group.launch, group.saving = None, None
        if any(a.worn for a in answers.values()):
            self.replace(group)
        else:
            group.state = "idle"

    def replace(self, group: Group, lost: Sequence[str] = ()) -> None:
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

    def close(self) -> None:
        """End all groups, and give their room back."""
        burials = [self._kill(group) for group in self.groups.values()]
        for burial in burials:
            burial.join(2 * _CLOSE_SECONDS)
        for group in self.groups.values():
            give_up(group.placement)
        self.groups.clear()
