"""A model on a single rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.communication.exchange import Exchange
from trainers.data.stream import Batch
from trainers.parallel.protocol import Forward, Loss
from trainers.parallel.ranks import Ranks
from trainers.parallel.states import load
from trainers.parallel.update import Update


class Single:
    """A model in one process, for which the other implementations must compute the same."""

    collective = False
    counts = True
    owned = None
    exchange: Exchange | None = None
    update: Update | None = None

    def __init__(self, model: nn.Module, data: Ranks, forward: Forward) -> None:
        self.data = data
        self.network = model
        self._forward = forward

    def at(self, progress: float) -> None: ...

    def gradients(self, parts: Sequence[Batch], loss: Loss) -> None:
        for part in parts:
            self._forward.backward(self.network, part, loss)

    alone = gradients

    def evaluate(self, x: Tensor) -> Tensor | None:
        return self._forward.scores(self.network, x)

    def labels(self, y: Tensor) -> Tensor:
        return y

    def changed(self) -> None: ...

    def state(self) -> dict[str, Any]:
        return dict(self.network.state_dict())

    def restore(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        return load(state, self.network, optimizer)

    def close(self) -> None:
        del self.network
