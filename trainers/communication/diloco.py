"""DiLoCo: what many steps of the ranks have changed is the gradient of an outer optimizer.

Every rank makes H steps from the global weights; the mean of what they changed goes through SGD
with Nesterov momentum, whose result all ranks begin at again. Douillard et al. 2023, arXiv
2311.08105. The global weights are what is evaluated and saved. With an outer rate of 1 and no
momentum they are the mean of the ranks' weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from autotune.schedules import as_schedule
from trainers.communication.copies import Copies, Every
from trainers.readers import Number, Schedule, counted
from trainers.technique import Knob, when

_CHOSEN = when("synchronization", "diloco")
KNOBS: Mapping[str, Knob] = {
    "diloco_period": Knob(as_schedule(32), counted(1), "both", _CHOSEN, memory=False),
    "diloco_outer_lr": Knob(0.7, Number(0.0, open_low=True), "statistical", _CHOSEN, memory=False),
    "diloco_outer_momentum": Knob(0.9, Number(0.0, 1.0), "statistical", _CHOSEN, memory=False),
}


class DiLoCo:
    """Global weights, and the outer optimizer's momentum.

    Args:
        period: steps of the ranks to one of the outer optimizer, a schedule.
        lr, momentum: of the outer optimizer.
    """

    def __init__(self, copies: Copies, period: Schedule, lr: float, momentum: float) -> None:
        self._copies, self._every = copies, Every(period)
        self._lr, self._momentum = lr, momentum
        self._begin()

    def _begin(self) -> None:
        self._weights = self._copies.weights()
        self._velocity = torch.zeros_like(self._weights)

    def at(self, progress: float) -> None:
        self._every.at(progress)

    def gradients(self) -> bool:
        return True

    def stepped(self) -> None:
        if self._every.next():
            moved = self._weights - self._copies.mean(self._copies.weights())
            self._velocity.mul_(self._momentum).add_(moved)
            moved.add_(self._velocity, alpha=self._momentum)
            self._weights.sub_(moved, alpha=self._lr)
            self._copies.set(self._weights)

    def arrived(self) -> None: ...

    def whole(self) -> Tensor:
        return self._weights.clone()

    def restart(self) -> None:
        self._begin()
        self._every.restart()

    def metrics(self) -> dict[str, float]:
        return {}

    def shared(self) -> dict[str, Any]:
        return {"velocity": self._velocity}

    def own(self) -> dict[str, Any]:
        return {"since": self._every.since}

    def restore(self, shared: dict[str, Any], own: dict[str, Any] | None) -> None:
        self._velocity.copy_(shared["velocity"])
        if own is not None:
            self._every.restart(own["since"])
