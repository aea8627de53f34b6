"""A model of which every rank has a copy, but for classes that are divided over the ranks.

In states the classes are a tensor that is sharded by rows (torch's DTensor), as are the optimizer's
tensors of them: so every rank saves its rows, and any number of ranks reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from trainers.communication.exchange import Exchange
from trainers.data.stream import Batch
from trainers.models.recognition import Classes, Recognition
from trainers.parallel import mesh
from trainers.parallel.protocol import Loss, Owned, Parallel
from trainers.parallel.states import fitted
from trainers.parallel.update import Everywhere


def _spread(value: Tensor, classes: Classes) -> Tensor:
    """This rank's rows as a part of the tensor of all; on one rank it is all."""
    ranks, value = classes.ranks, value.detach()
    if ranks.size == 1:
        return value
    from torch.distributed.tensor import DTensor, Shard

    shape = torch.Size((classes.count, *value.shape[1:]))
    return DTensor.from_local(
        value,
        mesh.opened(ranks.device.type, {"classes": ranks.size}),
        [Shard(0)],
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )


def _rows(value: Tensor, classes: Classes) -> Tensor:
    """Of a tensor of all classes, whole or sharded over any ranks, this rank's rows."""
    spread: Any = fitted(value, _spread(classes.weight, classes))
    found: Tensor = spread if classes.ranks.size == 1 else spread.to_local()
    return found


class RowsUpdate:
    """The optimizer's step, which every rank makes of the copies and of its own classes."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._inner = Everywhere()

    def step(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        if scaler is not None:
            self._agree()
        self._inner.step(optimizer, scaler)

    def _agree(self) -> None:
        """A step whose gradients overflow on one rank is left out by all.

        Those of copies are averaged, and so overflow on all.
        """
        ranks, gradient = self._classes.ranks, self._classes.weight.grad
        assert gradient is not None
        over = (~gradient.isfinite()).any().float()
        if ranks.size > 1:
            dist.all_reduce(over, dist.ReduceOp.MAX, group=ranks.group)
        gradient.masked_fill_(over.bool(), torch.inf)

    def alone(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        self._inner.alone(optimizer, scaler)

    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        shape = self._classes.weight.shape
        return self._changed(optimizer, optimizer.state_dict(), shape, _spread)

    def own(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        shape = torch.Size((self._classes.count, *self._classes.weight.shape[1:]))
        return self._changed(optimizer, state, shape, _rows)

    def _changed(
        self, optimizer: Optimizer, state: dict[str, Any], shape: torch.Size, change: Any
    ) -> dict[str, Any]:
        """A state with other tensors of the classes, where they have this shape."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        index = next(i for i, p in enumerate(parameters) if p is self._classes.weight)
        kept = {
            name: change(value, self._classes)
            if isinstance(value, Tensor) and value.shape == shape
            else value
            for name, value in state["state"].get(index, {}).items()
        }
        return {**state, "state": {**state["state"], **({index: kept} if kept else {})}}


class WithClasses:
    """A model with divided classes.

    Args:
        model: has this rank's classes.
        inner: its backbone on the ranks.
    """

    counts = True
    exchange: Exchange | None = None

    def __init__(self, model: Recognition, inner: Parallel) -> None:
        self.data = inner.data
        self.collective = self.data.size > 1
        self._model, self._inner, self._classes = model, inner, model.classes
        self.update = RowsUpdate(model.classes)
        copies = [*model.backbone.parameters()] if self.data.rank == 0 else []
        self.owned = Owned([*copies, model.classes.weight], self.data)

    @property
    def network(self) -> nn.Module:
        return self._inner.network

    def gradients(self, parts: Sequence[Batch], loss: Loss) -> None:
        """Those of the classes are complete on their rank, and only divided by the ranks."""
        self._inner.gradients(parts, loss)
        if self._classes.weight.grad is not None:
            self._classes.weight.grad.div_(self.data.size)

    def alone(self, parts: Sequence[Batch], loss: Loss) -> None:
        assert not self.collective, "divided classes need all ranks"
        self._inner.alone(parts, loss)

    def evaluate(self, x: Tensor) -> Tensor | None:
        """The features of a batch; not collective."""
        return self._inner.evaluate(x)

    def labels(self, y: Tensor) -> Tensor:
        return y

    def at(self, progress: float) -> None:
        self._classes.at(progress)

    def changed(self) -> None: ...

    def state(self) -> dict[str, Any]:
        spread = {id(self._classes.weight): _spread(self._classes.weight, self._classes)}
        found = self._model.state_dict(keep_vars=True)
        return {k: spread.get(id(v), v.detach()) for k, v in found.items()}

    def restore(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        own = self._model.state_dict(keep_vars=True)
        divided = {key for key, value in own.items() if value is self._classes.weight}
        weights = {
            key: _rows(value, self._classes) if key in divided else value
            for key, value in state["model"].items()
        }
        self._model.load_state_dict(weights)
        return state

    def close(self) -> None:
        self._inner.close()
        del self._inner, self._model, self._classes, self.update, self.owned
