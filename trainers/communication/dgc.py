"""Deep gradient compression: of each gradient the largest numbers are sent, the others kept.

Of every parameter a rank keeps v, the sum of what it has not sent, and with momentum correction u,
a momentum of its own gradients: u = m u + g, v = v + u. The largest numbers of v by their amount
are sent with their places, and taken out of v and u. The optimizer has no momentum then. In the
first steps more is sent: the share falls exponentially from a quarter. Lin et al. 2018, arXiv
1712.01887; here the largest numbers are the exact ones, and a step of a rank is one message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.schedules import Constant
from trainers.communication.exchange import Memory, Wire, gradients
from trainers.communication.largest import count, share, taken
from trainers.parallel.update import WithoutMomentum
from trainers.readers import Number, Schedule, flag, optional, scheduled, whole
from trainers.technique import Knob, when

KIND = "dgc"
_CHOSEN = when("gradient_compression", KIND)
_SHARE = Number(0.0, 1.0, open_low=True, closed_high=True)
KNOBS: Mapping[str, Knob] = {
    "dgc_ratio": Knob(Constant(0.01), scheduled(_SHARE), "both", _CHOSEN),
    "dgc_warmup_steps": Knob(0, whole(0), "both", _CHOSEN, memory=False),
    "dgc_momentum": Knob(True, flag, "statistical", _CHOSEN),
    "dgc_clip": Knob(
        None, optional(Number(0.0, open_low=True)), "statistical", _CHOSEN, memory=False
    ),
    "dgc_dense_below": Knob(1024, whole(0), "both", _CHOSEN),
}


def check(optimizer: str, corrects: bool, options: Mapping[str, Any]) -> None:
    """Raise a ValueError, one line, for an optimizer that its sums are not made for."""
    chosen = "with gradient_compression 'dgc'"
    if optimizer != "sgd":
        raise ValueError(f"optimizer must be 'sgd' {chosen}, got {optimizer!r}")
    if corrects and options.get("nesterov"):
        raise ValueError(f"nesterov must be False {chosen} and dgc_momentum True, got True")


def sent(shapes: Iterable[tuple[int, ...]], share: float, dense_below: int) -> int:
    """The bytes that a rank gives to the others in a step: a number and its place are 8.

    >>> sent([(100, 100), (100,)], share=0.01, dense_below=1000)
    1200
    """
    sizes = [prod(shape) for shape in shapes]
    return sum(4 * n if n < dense_below else 8 * count(n, share) for n in sizes)


@dataclass
class DGC:
    """Exchanges the largest numbers of gradients.

    Args:
        ratio: the share that is sent, a schedule.
        warmup: steps in which it falls to that.
        corrects: whether the momentum is that of each rank, before the exchange.
        clip: the most that the norm of the gradient may be; a rank's own is at most that over the
            root of the number of ranks. None: not clipped.
        dense_below: parameters with fewer numbers are averaged whole.
    """

    begins: ClassVar[int] = 0
    model: nn.Module
    wire: Wire
    ratio: Schedule
    warmup: int
    corrects: bool
    clip: float | None
    dense_below: int

    def __post_init__(self) -> None:
        self.update = WithoutMomentum() if self.corrects else None
        self.at(0.0)

    def start(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        new = {
            i: torch.zeros_like(p, memory_format=torch.contiguous_format)
            for i, p in enumerate(parameters)
        }
        sparse = {i: zeros for i, zeros in new.items() if zeros.numel() >= self.dense_below}
        memory = Memory(KIND, self.wire.ranks, own={"velocity": sparse})
        if self.corrects:
            memory.own["momentum"] = {i: torch.zeros_like(v) for i, v in sparse.items()}
            memory.shared["momentum"] = {i: v for i, v in new.items() if i not in sparse}
        self.memory = memory

    def at(self, progress: float) -> None:
        self._share = self.ratio(progress)

    def next(self) -> bool:
        self.memory.steps += 1
        return True

    @torch.no_grad()
    def average(self) -> None:
        found, memory = gradients(self.model), self.memory
        if self.clip is not None:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(found)))
            most = self.clip / math.sqrt(self.wire.ranks.size)
            torch._foreach_mul_(found, (most / norm).clamp(max=1.0))
        dense = {i: g for i, g in enumerate(found) if i not in memory.own["velocity"]}
        self.wire.mean([*dense.values()])
        m = self._optimizer.param_groups[0].get("momentum", 0.0)
        for i, g in dense.items() if self.corrects else ():
            g.copy_(memory.shared["momentum"][i].mul_(m).add_(g))
        self._average_largest(found, m)

    def _average_largest(self, found: list[Tensor], m: float) -> None:
        velocities, momenta = self.memory.own["velocity"], self.memory.own.get("momentum", {})
        part = share(self._share, self.memory.steps - 1, self.warmup)
        values, places = [], []
        for i, v in velocities.items():
            v.add_(momenta[i].mul_(m).add_(found[i]) if self.corrects else found[i])
            largest, at = taken(v, count(v.numel(), part), momenta.get(i))
            values.append(largest)
            places.append(at.int())
        if not values:
            return
        sizes, kinds = [len(value) for value in values], (values, places)
        message = torch.cat([torch.cat(parts).view(torch.uint8) for parts in kinds])
        sums = {i: torch.zeros_like(v).view(-1) for i, v in velocities.items()}
        for row in self.wire.gathered(message):  # in the order of ranks, so that sums are equal
            numbers, at = row.chunk(2)
            read = numbers.view(torch.float32).split(sizes), at.view(torch.int32).split(sizes)
            for total, value, where in zip(sums.values(), *read, strict=True):
                total.index_add_(0, where, value)
        for i, total in sums.items():
            found[i].copy_(total.div_(self.wire.ranks.size).view_as(found[i]))
