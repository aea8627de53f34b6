"""Steps of a small linear model on the ranks of a real group, and the same computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.communication.synchronization import averaged
from trainers.parallel.protocol import Forward
from trainers.parallel.ranks import Ranks
from trainers.training import read_training

CPU = torch.device("cpu")
LR, MOMENTUM = 0.05, 0.5
INPUTS, SAMPLES = 3, 6
WEIGHTS = INPUTS * 8
"""Bytes of the parameters."""


def data(rank: int) -> tuple[Tensor, Tensor]:
    """A rank's samples; other ranks have others."""
    found = torch.randn(SAMPLES, INPUTS + 1, generator=torch.Generator().manual_seed(rank)).double()
    return found[:, :INPUTS], found[:, INPUTS:]


def linear() -> nn.Linear:
    model = nn.Linear(INPUTS, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.5)
    return model


def loss(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().mean()


def taken(keys: dict[str, Any], steps: int) -> dict[str, Any]:
    """Steps with these keys; of each the rank's weights, the one model, and bytes given to sums."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    training, _ = read_training({"lr": LR, **keys}, {}, "here")
    model, ranks = linear(), Ranks(rank, size, CPU)
    copies = averaged(training.synchronization, model, ranks, Forward(CPU))
    copies.changed()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    found: dict[str, Any] = {"weights": [], "whole": [], "sent": []}
    given: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        real = dist.all_reduce

        def counted(tensor: Tensor, **named: Any) -> Any:
            given.append(tensor.nbytes)
            return real(tensor, **named)

        patch.setattr(dist, "all_reduce", counted)
        for step in range(steps):
            given.clear()
            copies.at(step / steps)
            copies.gradients([data(rank)], loss)
            copies.update.step(optimizer, None)
            optimizer.zero_grad()
            found["sent"].append(sum(given))
            found["weights"].append(model.weight.detach().flatten().clone())
            found["whole"].append(copies.averaging.whole())
    copies.averaging.arrived()
    return {**found, "metrics": copies.metrics()}


class ByHand:
    """All ranks of a training in one process, as the papers have it.

    Attributes:
        weights: of each rank.
    """

    def __init__(self, ranks: int) -> None:
        self.weights = [torch.full((INPUTS,), 0.5).double() for _ in range(ranks)]
        self._momenta = [torch.zeros(INPUTS).double() for _ in range(ranks)]

    def gradients(self) -> list[Tensor]:
        """Of each rank at its own weights."""
        return [self._gradient(rank, w) for rank, w in enumerate(self.weights)]

    def _gradient(self, rank: int, weights: Tensor) -> Tensor:
        x, y = data(rank)
        return 2 / SAMPLES * x.t() @ (x @ weights - y.flatten())

    def step(self, gradients: Sequence[Tensor]) -> None:
        """SGD with momentum on each rank."""
        for rank, gradient in enumerate(gradients):
            self._momenta[rank] = MOMENTUM * self._momenta[rank] + gradient
            self.weights[rank] = self.weights[rank] - LR * self._momenta[rank]

    def mean(self, ranks: Sequence[int] | None = None) -> Tensor:
        return mean([self.weights[r] for r in ranks or range(len(self.weights))])

    def average(self, ranks: Sequence[int] | None = None) -> None:
        found = self.mean(ranks)
        for rank in ranks or range(len(self.weights)):
            self.weights[rank] = found.clone()


def mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack([*values]).mean(0)


def exchanges(period: Callable[[float], float], steps: int) -> list[bool]:
    """After which steps a schedule of the period has ranks exchange."""
    found, since = [], 0
    for step in range(steps):
        since += 1
        found.append(since >= round(period(step / steps)))
        since = 0 if found[-1] else since
    return found
