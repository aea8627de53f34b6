"""Worker groups that stay warm from one test's study to the next one's.

A worker's process needs seconds to start, most of them for imports. While `Lender.lending()` lasts,
a pool that closes leaves its idle groups here in place of ending their processes, and the next pool
that wants groups of the same kind gets them: each process is cleaned as between two trials and then
has a new rank object. Everything else is the product's: how a group is placed, joined, replaced.
Where the start or the end of processes is the point of a test, `Lender.away()` is what it needs.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from autotune.backends.groups import lifecycle
from autotune.backends.groups.turns import Group
from autotune.backends.ray import actors as actors_
from autotune.trial.scaling import Scaling

_ROOM_SECONDS = 120.0  # for the cluster to take back what ended groups held
_CLEAN_SECONDS = 120.0


@dataclass(frozen=True)
class Kind:
    """What two groups must have in common for one to stand in for the other."""

    workers: int
    cpus: float
    gpus: float
    strategy: str
    environment: tuple[tuple[str, str], ...]
    job: str  # actors and placement groups end with the driver that started them


@dataclass(frozen=True)
class Kept:
    """A group that nobody uses: its room, and its processes in the order of their ranks."""

    kind: Kind
    placement: Any
    actors: list[Any]


class Lender:
    """Keeps the idle groups of pools that are closed, and hands them out again."""

    def __init__(self) -> None:
        self._kept: list[Kept] = []
        self._lent: dict[int, tuple[Kind, list[Any]]] = {}  # by the placement's identity
        self._on = False
        self.started = self.reused = 0

    @contextlib.contextmanager
    def lending(self) -> Iterator[None]:
        """Pools of this process take their groups from here."""
        reserve_again, start, close = (
            actors_.reserve,
            actors_.processes,
            lifecycle.WorkerGroups.close,
        )
        lender = self

        def reserve(scaling: Scaling, strategy: str, lost: Sequence[str] = ()) -> Any:
            kind = _kind(scaling, strategy)
            kept = None if lost else lender._take(kind)
            if kept is None:
                placement = reserve_again(scaling, strategy, lost)
                lender._lent[id(placement)] = (kind, [])
                return placement
            lender._lent[id(kept.placement)] = (kind, kept.actors)
            return kept.placement

        def processes(placement: Any, scaling: Scaling, train: bytes) -> list[Any]:
            kind, actors = lender._lent.get(id(placement), (None, []))
            if kind is not None:
                lender._lent[id(placement)] = (kind, [])  # what is replaced starts for real
            if actors and _renewed(actors, train):
                lender.reused += len(actors)
                return actors
            for actor in actors:
                ray.kill(actor, no_restart=True)
            lender.started += scaling.num_workers
            return start(placement, scaling, train)

        def ended(pool: lifecycle.WorkerGroups) -> None:
            for number, group in list(pool.groups.items()):
                on_ray = isinstance(pool._processes, actors_.Actors)
                if lender._on and on_ray and lender._keep(group):
                    del pool.groups[number]
            close(pool)

        with contextlib.ExitStack() as undo:
            for owner, name, new in (
                (actors_, "reserve", reserve),
                (actors_, "processes", processes),
                (lifecycle.WorkerGroups, "close", ended),
            ):
                undo.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, new)
            self._on = True
            try:
                yield
            finally:
                self._on = False
                self.end_all()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Nothing is kept, and all room of the cluster is free: every process is a new one."""
        before, self._on = self._on, False
        self.end_all()
        try:
            yield
        finally:
            self._on = before

    def end_all(self) -> None:
        """End what is kept, and wait until the cluster has its room back."""
        ended, self._kept = self._kept, []
        if not ended or not ray.is_initialized():
            return
        for kept in ended:
            for actor in kept.actors:
                ray.kill(actor, no_restart=True)
            actors_.release_placement(kept.placement)
        self._await_room()

    @staticmethod
    def _await_room() -> None:
        end = time.monotonic() + _ROOM_SECONDS
        while time.monotonic() < end:
            total, free = ray.cluster_resources(), ray.available_resources()
            if free.get("CPU", 0.0) >= total.get("CPU", 0.0):
                return
            time.sleep(0.05)

    def _keep(self, group: Group) -> bool:
        kind, _ = self._lent.pop(id(group.placement), (None, []))
        if kind is None or group.state != "idle" or not group.actors:
            return False
        self._kept.append(Kept(kind, group.placement, list(group.actors)))
        return True

    def _take(self, kind: Kind) -> Kept | None:
        """A kept group of this kind; where there is none, all others make room for a new one."""
        for kept in self._kept:
            if kept.kind == kind:
                self._kept.remove(kept)
                return kept
        self.end_all()
        return None


def _kind(scaling: Scaling, strategy: str) -> Kind:
    environment = tuple(sorted(actors_._environment(scaling).items()))
    cpus, gpus = scaling.cpus, scaling.gpus
    job = ray.get_runtime_context().get_job_id()
    return Kind(scaling.num_workers, cpus, gpus, strategy, environment, job)


def _renewed(actors: list[Any], train: bytes) -> bool:
    """Whether all processes are clean, and have a new rank object."""
    size, path = len(actors), list(sys.path)
    calls = [
        actor.__ray_call__.remote(_renew, train, path, rank, size)
        for rank, actor in enumerate(actors)
    ]
    try:
        return not any(ray.get(calls, timeout=_CLEAN_SECONDS))
    except ray.exceptions.RayError:
        return False


def _renew(rank: Any, train: bytes, path: list[str], number: int, size: int) -> str:
    """In the worker: why its process cannot be used again, or an empty string."""
    from torch import distributed as dist

    from autotune.backends.worker import isolation

    if rank._steps is not None:
        return "a trial is running"
    rank._cancel_writing()
    if rank._made_writer is not None:
        rank._made_writer._thread.shutdown()
    own = rank._process
    own.cores.release()
    if dist.is_initialized():
        dist.destroy_process_group()
    isolation.restore(own.clean)
    usual = own.usual or isolation.resource_use()
    if leaked := isolation.leaked_resources(own.clean, usual):
        return leaked
    rank.__init__(train, path, number, size)
    return ""


LENDER = Lender()
"""The one of this process."""
