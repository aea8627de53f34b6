"""Trials whose two ranks are on both sides of a slow network, for whole studies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import cloudpickle
from _slow_link import Link

from autotune.backends.groups.pool import WorkerPool
from autotune.backends.local import machine
from autotune.backends.local.pool import resolve_here
from autotune.backends.local.processes import Child, ChildProcesses, Room
from autotune.backends.recipe_modules import pickled
from autotune.trial.scaling import Scaling


class SlowLinkProcesses(ChildProcesses):
    """Processes of worker groups, each rank on its side of the network, as on a node of its own."""

    def __init__(self, train: bytes, scaling: Scaling, link: Link) -> None:
        super().__init__(train, scaling, (), None)
        self._link, self._size = link, scaling.num_workers
        self._ranks: dict[Child, int] = {}

    def launcher(self, rank: int) -> Sequence[str]:
        return self._link.command(rank, self._size)

    def start(self, placement: Room) -> list[Child]:
        children = super().start(placement)
        self._ranks |= {child: rank for rank, child in enumerate(children)}
        return children

    def call(self, process: Child, method: str, *arguments: Any) -> Future[Any]:
        if method == "locate" and self._link.spaces:
            node = f"side-{self._ranks[process] * len(self._link.spaces) // self._size}"
            return super().call(process, "place", node, self._link.address, *arguments)
        return super().call(process, method, *arguments)


class SlowLinkPool(WorkerPool):
    """Runs trials one at a time on two ranks of this machine, over a network.

    Args:
        train: the trainer.
        link: the network.
    """

    def __init__(self, train: Callable[[dict[str, Any]], Any], link: Link) -> None:
        wanted = Scaling(num_workers=2, cpus_per_worker=1, max_concurrent_trials=1)
        scaling, _ = resolve_here(wanted)
        sent = pickled(train, cloudpickle)
        super().__init__(SlowLinkProcesses(sent, scaling, link), scaling, 600.0)
        self._groups.grow([machine.resources()])
