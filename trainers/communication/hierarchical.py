"""Averages in two levels: often within groups of neighbours, more seldom over all ranks.

Lin et al. 2020, arXiv 1808.07217, section on hierarchical local SGD. A group is that of
`trainers.parallel.topology`: the ranks of a machine, if no size is given. Momenta stay local.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from autotune.schedules import as_schedule
from trainers.communication.copies import Copies, Every
from trainers.parallel import mesh
from trainers.parallel.ranks import Ranks, along, ranks_of_a_machine
from trainers.readers import Schedule, counted, optional, whole
from trainers.technique import Knob, when

_CHOSEN = when("synchronization", "hierarchical")
GROUP_SIZE = "hierarchical_group_size"
KNOBS: Mapping[str, Knob] = {
    "hierarchical_inner_period": Knob(as_schedule(4), counted(1), "both", _CHOSEN, memory=False),
    "hierarchical_outer_period": Knob(as_schedule(16), counted(1), "both", _CHOSEN, memory=False),
    GROUP_SIZE: Knob(None, optional(whole(2)), "both", _CHOSEN, memory=False),
}


def sent(weights: int, inner: int, outer: int) -> tuple[float, float]:
    """The bytes that a rank gives to sums within its group and over all, the mean of the steps.

    Args:
        weights: bytes of the parameters.

    >>> sent(1600, inner=4, outer=16)
    (300.0, 100.0)
    """
    return weights * ((outer - 1) // inner) / outer, weights / outer


def check(group_size: int | None, ranks: int) -> None:
    """Raise a ValueError, one line, for groups that are not all of this size."""
    if group_size is not None and ranks % group_size:
        raise ValueError(f"{GROUP_SIZE} {group_size} must divide the {ranks} ranks")


def within(group_size: int | None, ranks: Ranks) -> Ranks:
    """This rank among its neighbours; one of all ranks.

    Raises:
        ValueError: no group size is given, and machines have different numbers of ranks.
    """
    if ranks.size == 1:
        return ranks
    size = group_size or ranks_of_a_machine(ranks, GROUP_SIZE)
    opened = mesh.opened(ranks.device.type, {"across": ranks.size // size, "within": size})
    neighbours = along(opened, "within", ranks)
    neighbours.sum(torch.zeros(1, device=ranks.device))  # what NCCL opens late is opened now
    return neighbours


class Hierarchical:
    """Averages weights in two levels.

    Args:
        within: this rank among its neighbours.
        inner: steps from one averaging to the next within groups, a schedule.
        outer: steps from one to the next over all ranks, a schedule.
    """

    def __init__(self, copies: Copies, within: Ranks, inner: Schedule, outer: Schedule) -> None:
        self._copies, self._within = copies, within
        self._inner, self._outer = Every(inner), Every(outer)

    def at(self, progress: float) -> None:
        self._inner.at(progress)
        self._outer.at(progress)

    def gradients(self) -> bool:
        return True

    def stepped(self) -> None:
        among_all, among_neighbours = self._outer.next(), self._inner.next()
        if among_all:
            self._inner.restart()
            self._copies.set(self.whole())
        elif among_neighbours:
            self._copies.set(self._copies.mean(self._copies.weights(), self._within))

    def arrived(self) -> None: ...

    def whole(self) -> Tensor:
        return self._copies.mean(self._copies.weights())

    def restart(self) -> None:
        self._inner.restart()
        self._outer.restart()

    def metrics(self) -> dict[str, float]:
        return {}

    def shared(self) -> dict[str, Any]:
        return {}

    def own(self) -> dict[str, Any]:
        return {"inner": self._inner.since, "outer": self._outer.since}

    def restore(self, shared: dict[str, Any], own: dict[str, Any] | None) -> None:
        if own is not None:
            self._inner.restart(own["inner"])
            self._outer.restart(own["outer"])
