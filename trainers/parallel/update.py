"""The optimizer's step on the ranks, and its state."""

from __future__ import annotations

from typing import Any, Protocol

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer


class Update(Protocol):
    """Who makes the step of which parameters."""

    def step(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        """One step with the averaged (and, with a scaler, scaled) gradients."""
        ...

    def alone(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        """What this rank does in a step, without the others; parameters differ afterwards."""
        ...

    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of all parameters."""
        ...

    def own(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Of the state of all parameters what this rank keeps."""
        ...


class Everywhere:
    """Every rank makes the step of the parameters, or parts of parameters, that it has."""

    def step(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()

    alone = step

    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        return optimizer.state_dict()

    def own(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return state


class WithoutMomentum:
    """The optimizer's step without its momentum, which gradients have already."""

    def __init__(self) -> None:
        self._inner = Everywhere()
        self.state, self.own = self._inner.state, self._inner.own

    def step(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        kept = [group["momentum"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["momentum"] = 0.0
        self._inner.step(optimizer, scaler)
        for group, momentum in zip(optimizer.param_groups, kept, strict=True):
            group["momentum"] = momentum

    alone = step
