"""The optimizer's state dealt out over the ranks by whole parameters (ZeRO, stage 1).

Every rank has all weights and averaged gradients, makes the step of its own parameters, and sends
them to the others. It works with any optimizer that keeps its state by parameter. Rajbhandari et
al. 2020, arXiv 1910.02054.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from trainers.optimizers import LAMB, LARS, schedule_free
from trainers.parallel.exposed import Exposed
from trainers.parallel.ranks import Ranks
from trainers.parallel.update import Everywhere
from trainers.readers import flag
from trainers.technique import Knob, when

KNOBS: Mapping[str, Knob] = {
    "shard_optimizer_state": Knob(
        False,
        flag,
        "exact",
        when("data_parallel_shard_degree", 1),
    ),
}


def check(optimizer: str, rule: str) -> None:
    """Raise a ValueError for an optimizer whose weights change otherwise than by its steps.

    Args:
        rule: the key, and what it must be then.
    """
    if optimizer in schedule_free.KINDS:
        raise ValueError(
            f"{rule} with optimizer {optimizer!r}, which also changes weights between steps"
        )


def dealt(sizes: Sequence[int], ranks: int) -> list[int]:
    """The rank of each parameter: the largest first, each to the rank with the least so far.

    >>> dealt([5, 1, 4, 3], 2)
    [0, 0, 1, 1]
    """
    loads, owners = [0] * ranks, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[index] = min(range(ranks), key=lambda rank: loads[rank])
        loads[owners[index]] += sizes[index]
    return owners


class Dealt:
    """Every rank makes the step of its own parameters.

    Args:
        exposed: measures the time in which they are sent.
    """

    def __init__(self, data: Ranks, exposed: Exposed | None = None) -> None:
        self._data = data
        self._exposed = exposed

    def _owned(self, optimizer: Optimizer) -> tuple[list[Tensor], list[int]]:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return parameters, dealt([p.numel() for p in parameters], self._data.size)

    def step(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        if isinstance(optimizer, LARS | LAMB):
            optimizer.partition_group = self._data.group or dist.group.WORLD
        made = self._step(optimizer, scaler)
        with nullcontext() if self._exposed is None else self._exposed.waiting():
            self._send(*made)

    def alone(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        self._step(optimizer, scaler)

    def _step(
        self, optimizer: Optimizer, scaler: GradScaler | None
    ) -> tuple[list[Tensor], list[int]]:
        """Make the step of the rank's own parameters; all of them, and their ranks."""
        parameters, owners = self._owned(optimizer)
        if scaler is not None:
            scaler.unscale_(optimizer)  # finds what is infinite in all gradients, on every rank
        for parameter, owner in zip(parameters, owners, strict=True):
            if owner != self._data.rank:
                parameter.grad = None
        Everywhere().step(optimizer, scaler)
        return parameters, owners

    @torch.no_grad()
    def _send(self, parameters: Sequence[Tensor], owners: Sequence[int]) -> None:
        """Every rank's parameters to all others, those of one dtype in one message."""
        for rank in range(self._data.size):
            of_rank = [p for p, owner in zip(parameters, owners, strict=True) if owner == rank]
            for dtype in sorted({p.dtype for p in of_rank}, key=str):
                sent = [p for p in of_rank if p.dtype == dtype]
                flat = torch.cat([p.detach().flatten() for p in sent])
                dist.broadcast(flat, group_src=rank, group=self._data.group)
                if rank != self._data.rank:
                    parts = torch.split(flat, [p.numel() for p in sent])
                    for parameter, part in zip(sent, parts, strict=True):
                        parameter.copy_(part.view_as(parameter))

    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of all parameters, on every rank and on the host; collective."""
        own = optimizer.state_dict()
        mine = tree_map_only(Tensor, lambda t: t.detach().cpu(), own["state"])
        found: list[dict[int, Any]] = [{}] * self._data.size
        dist.all_gather_object(found, mine, group=self._data.group)
        merged = {index: state for part in found for index, state in part.items()}
        return {**own, "state": {index: merged[index] for index in sorted(merged)}}

    def own(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        _, owners = self._owned(optimizer)
        mine = {i: kept for i, kept in state["state"].items() if owners[i] == self._data.rank}
        return {**state, "state": mine}
