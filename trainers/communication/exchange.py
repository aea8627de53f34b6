"""What copies of a model exchange in place of whole gradients, and what they keep of them.

The passes of a step add up a rank's own gradients; then it exchanges all of them at once. So a
message has a part of every parameter, and nothing is kept by bucket: DDP's are made anew after the
first step. (In torch's `powerSGD_hook` on gloo the messages of several buckets mix.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.parallel.ranks import Ranks, all_gather, fill
from trainers.parallel.update import Update

Kept = dict[str, dict[int, Tensor]]
"""By what it is, and the place of its parameter in the model."""


@dataclass
class Memory:
    """What an exchange keeps between steps; a part of the rank's checkpoint.

    Args:
        kind: the compression.
        ranks: those that exchange.
        steps: that were made.
        shared: what is equal on all ranks.
        own: what is this rank's, as errors.
        late: the names of what is kept from the first compressed step on.
    """

    kind: str
    ranks: Ranks
    steps: int = 0
    shared: Kept = field(default_factory=dict)
    own: Kept = field(default_factory=dict)
    late: tuple[str, ...] = ()

    def state(self) -> dict[str, Any]:
        """For `restore`; the tensors are those in use."""
        kept = {"shared": self.shared, "own": self.own}
        return {"kind": self.kind, "ranks": self.ranks.size, "steps": self.steps, **kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a state of the same kind; of another number of ranks without their own."""
        if state.get("kind") != self.kind:
            return
        self.steps = state["steps"]
        self._take(self.shared, state["shared"])
        if state["ranks"] == self.ranks.size:
            self._take(self.own, state["own"])

    def _take(self, kept: Kept, saved: Kept) -> None:
        """What is kept under these settings; of what is kept later, all."""
        for name, there in kept.items():
            known = {*there}
            for index, value in saved.get(name, {}).items():
                if index in known or name in self.late:
                    there[index] = value.detach().to(self.ranks.device, copy=True)


class Exchange(Protocol):
    """How ranks exchange the gradients of a step."""

    @property
    def memory(self) -> Memory:
        """Since `start`."""
        ...

    @property
    def update(self) -> Update | None:
        """Who makes the optimizer's step; None: as the plan says."""
        ...

    @property
    def begins(self) -> int:
        """Steps before the first that is compressed."""
        ...

    def start(self, optimizer: Optimizer) -> None:
        """Begin a training: nothing is kept yet."""
        ...

    def at(self, progress: float) -> None:
        """Take the scheduled settings of this progress, in [0, 1]."""
        ...

    def next(self) -> bool:
        """Count a step; whether it is compressed, or whole gradients are averaged as ever."""
        ...

    def average(self) -> None:
        """Exchange the gradients of this rank's passes."""
        ...


class Wire:
    """The messages of an exchange.

    Args:
        waiting: measures the time of a part of a step that only communicates.
    """

    def __init__(self, ranks: Ranks, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self.ranks = ranks
        self._waiting = waiting

    def mean(self, tensors: Sequence[Tensor], dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Average over the ranks, in place and in one message of this dtype.

        Returns:
            what this rank has sent of each tensor, in full.
        """
        if not tensors:
            return []
        size = self.ranks.size
        flat = torch.cat([tensor.flatten() for tensor in tensors]).div_(size).to(dtype)
        sent = flat.float() * size
        with self._waiting():
            dist.all_reduce(flat, group=self.ranks.group)
        fill(tensors, flat)
        parts = [tensor.numel() for tensor in tensors]
        return [p.view_as(t) for p, t in zip(torch.split(sent, parts), tensors, strict=True)]

    def gathered(self, own: Tensor) -> Tensor:
        """The flat tensors of all ranks, equally long, one a row."""
        found = own.new_empty(self.ranks.size * own.numel())
        with self._waiting():
            all_gather(found, own, group=self.ranks.group)
        return found.view(self.ranks.size, -1)


def gradients(model: nn.Module) -> list[Tensor]:
    """Those of all trained parameters, 0 where a step did not reach one."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [p.grad for p in trained if p.grad is not None]


def shapes(model: nn.Module) -> list[torch.Size]:
    """Those of all trained parameters."""
    return [p.shape for p in model.parameters() if p.requires_grad]
