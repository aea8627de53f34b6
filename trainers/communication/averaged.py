"""A copy of the model on every rank, in which it makes steps that are not those of all ranks.

How copies are kept together is a `trainers.communication.copies.Averaging`. Between steps and
evaluations weights change: what is evaluated, exported and saved is one model, equal on all ranks,
and a rank's own weights are kept aside. Both are in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from trainers.communication.copies import Averaging, Copies
from trainers.communication.exchange import Exchange
from trainers.data.stream import Batch
from trainers.parallel.protocol import Forward, Loss
from trainers.parallel.ranks import Ranks, average
from trainers.parallel.single import Single
from trainers.parallel.states import load
from trainers.parallel.update import Everywhere


class Averaged:
    """Copies of the model that are averaged otherwise than by their gradients in every step.

    Args:
        data: ranks that have a copy each, and a part of each batch.
        kind: of `averaging`, by which states are told apart.
    """

    collective = False
    counts = True
    owned = None
    exchange: Exchange | None = None

    def __init__(
        self,
        model: nn.Module,
        data: Ranks,
        forward: Forward,
        copies: Copies,
        averaging: Averaging,
        kind: str,
    ) -> None:
        self.data = data
        self.network = model
        self.update = OwnSteps(self)
        self.averaging, self.kind = averaging, kind
        self._copies = copies
        self._local = Single(model, data, forward)
        self._own: Tensor | None = None
        self.steps = True
        """Whether the last gradients are those of a step."""

    def gradients(self, parts: Sequence[Batch], loss: Loss) -> None:
        self._local.gradients(parts, loss)
        self.steps = self.averaging.gradients()

    def alone(self, parts: Sequence[Batch], loss: Loss) -> None:
        self._local.gradients(parts, loss)

    def begin(self) -> None:
        """Before steps: the model holds this rank's own weights."""
        if self._own is not None:
            self._copies.set(self._own)
            self._own = None

    def arrive(self) -> None:
        """After steps: wait for what travels."""
        if self._own is None:
            self.averaging.arrived()

    def settle(self) -> None:
        """Then the model holds the weights that are evaluated and saved."""
        if self._own is None:
            self._own = self._copies.weights()
            self._copies.set(self.averaging.whole())

    def evaluate(self, x: Tensor) -> Tensor | None:
        return self._local.evaluate(x)

    def labels(self, y: Tensor) -> Tensor:
        return y

    def at(self, progress: float) -> None:
        self.averaging.at(progress)

    def changed(self) -> None:
        """Begin again at the weights of the model, which are equal on all ranks."""
        self._own = None
        self.averaging.restart()

    def metrics(self) -> dict[str, float]:
        return self.averaging.metrics()

    def state(self) -> dict[str, Any]:
        return self._local.state()

    def restore(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        found = load(state, self.network, optimizer)
        self.changed()
        return found

    def own_state(self) -> dict[str, Any]:
        """What this rank has beside the one model, and what goes on on any number of ranks."""
        weights = self._copies.weights() if self._own is None else self._own
        own = {"weights": weights, **self.averaging.own()}
        shared = self.averaging.shared()
        return {"kind": self.kind, "ranks": self.data.size, "shared": shared, "own": own}

    def restore_own(self, state: dict[str, Any]) -> bool:
        """Go on from `own_state`; whether it is of as many ranks, which go on as they were."""
        if state["kind"] != self.kind:
            return False
        own = state["own"] if state["ranks"] == self.data.size else None
        self.averaging.restore(state["shared"], own)
        if own is not None:
            self._own = own["weights"].to(self.data.device, copy=True)
        return own is not None

    def close(self) -> None:
        self._local.close()
        del self.network, self.averaging, self.update, self._copies, self._own


class OwnSteps:
    """Every rank makes the steps of its copy, with an optimizer's state of its own.

    The state of all is the mean of the ranks' states; with it a checkpoint has this rank's own.
    """

    def __init__(self, copies: Averaged) -> None:
        self._copies = copies
        self._everywhere = Everywhere()
        self.alone = self._everywhere.alone

    def step(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        if self._copies.steps:
            self._everywhere.step(optimizer, scaler)
            self._copies.averaging.stepped()

    @torch.no_grad()
    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        own = self._everywhere.state(optimizer)
        mean = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), own["state"])
        device = self._copies.data.device  # counts of steps may be on the host, and are the same
        tensors = (t for t in tree_leaves(mean) if isinstance(t, Tensor) and t.device == device)
        numbers = [t for t in tensors if t.is_floating_point()]
        if numbers:
            average(numbers, self._copies.data)
        apart = {"optimizer": own["state"], **self._copies.own_state()}
        return {**own, "state": mean, "apart": apart}

    def own(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        apart = state.get("apart")
        if apart is not None and self._copies.restore_own(apart):
            return {**state, "state": apart["optimizer"]}
        return state
