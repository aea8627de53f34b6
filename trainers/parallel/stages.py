"""Whole layers dealt out over the ranks of a pipeline: who has which, and their step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from trainers.optimizers import LAMB, LARS
from trainers.parallel.protocol import Forward, Owned
from trainers.parallel.ranks import Ranks
from trainers.parallel.update import Everywhere
from trainers.parallel.zero1 import Dealt

STAGES: Mapping[str, int] = {
    "1F1B": 1,
    "GPipe": 1,
    "Interleaved1F1B": 2,
    "LoopedBFS": 2,
    "InterleavedZeroBubble": 2,
    "ZBVZeroBubble": 2,
}
"""The stages of a rank under each schedule; the names are torch's."""


def ranks_of(schedule: str, ranks: int) -> list[int]:
    """The rank of each stage: in turns, or there and back.

    >>> ranks_of("Interleaved1F1B", 2), ranks_of("ZBVZeroBubble", 2)
    ([0, 1, 0, 1], [0, 1, 1, 0])
    """
    there = [*range(ranks)]
    if schedule == "ZBVZeroBubble":
        return [*there, *reversed(there)]
    return there * STAGES[schedule]


class Holdings:
    """The parameters of this rank's stages; the model's others are taken off it.

    What several stages have, as an embedding that also gives the scores, belongs to the rank of the
    first of them: it gets the sum of the gradients, makes the step and sends the new values.

    Args:
        model: all of it, with equal parameters on every rank; changed in place. What is not here
            keeps its shape, without memory.
        stages: of the model, each with its parameters.
        places: the rank of each stage.
        ranks: of the pipeline.
    """

    def __init__(
        self, model: nn.Module, stages: Sequence[nn.Module], places: Sequence[int], ranks: Ranks
    ) -> None:
        holders: dict[int, list[int]] = {}
        for stage, place in zip(stages, places, strict=True):
            for parameter in stage.parameters():
                found = holders.setdefault(id(parameter), [])
                found += [place] if place not in found else []
        self._model, self._ranks = model, ranks
        named = model.state_dict(keep_vars=True)  # the names of states, wrapped units or not
        of = [(name, p, holders[id(p)]) for name, p in named.items() if id(p) in holders]
        self._tied = [(p, places) for _, p, places in of if len(places) > 1]
        self._names = {name for name, _, places in of if places[0] == ranks.rank}
        self.owned = Owned([p for _, p, places in of if places[0] == ranks.rank], ranks)
        here = {id(p) for _, p, places in of if ranks.rank in places}
        for module in model.modules():
            for name, parameter in [*module.named_parameters(recurse=False)]:
                if id(parameter) not in here:
                    setattr(module, name, nn.Parameter(parameter.detach().to("meta")))

    def add_up(self) -> None:
        """The gradients of what several ranks have, on the rank that it belongs to."""
        group, me = self._ranks.group, self._ranks.rank
        for parameter, (owner, *others) in self._tied:
            if me in others:
                assert parameter.grad is not None
                dist.send(parameter.grad.contiguous(), group=group, group_dst=owner)
                parameter.grad = None
            for other in others if me == owner else ():
                assert parameter.grad is not None
                more = torch.empty_like(parameter.grad)
                dist.recv(more, group=group, group_src=other)
                parameter.grad += more

    @torch.no_grad()
    def send(self) -> None:
        """The new values of what several ranks have."""
        group, me = self._ranks.group, self._ranks.rank
        for parameter, (owner, *others) in self._tied:
            if me in others:
                dist.recv(parameter.data, group=group, group_src=owner)
            for other in others if me == owner else ():
                dist.send(parameter.detach(), group=group, group_dst=other)

    def state(self) -> dict[str, Any]:
        """The weights of the whole model, on every rank and on the host; collective."""
        own = self._model.state_dict()
        mine = {name: own[name].detach().cpu() for name in self._names}
        found: list[dict[str, Tensor]] = [{}] * self._ranks.size
        dist.all_gather_object(found, mine, group=self._ranks.group)
        merged = {name: value for part in found for name, value in part.items()}
        return {name: merged[name] for name in own}


class Staged:
    """Every rank of a pipeline makes the step of its own parameters."""

    def __init__(self, holdings: Holdings, forward: Forward) -> None:
        self._holdings, self._forward = holdings, forward
        self._ranks = holdings.owned.ranks

    def step(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        if isinstance(optimizer, LARS | LAMB):
            optimizer.partition_group = self._ranks.group
        Everywhere().step(optimizer, scaler)
        with self._forward.waiting():
            self._holdings.send()

    def alone(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        raise AssertionError("a pipeline needs all ranks")

    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        return Dealt(self._ranks).state(optimizer)

    def own(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        owned = {id(p) for p in self._holdings.owned.parameters}
        mine = {i: kept for i, kept in state["state"].items() if id(parameters[i]) in owned}
        return {**state, "state": mine}
