"""Ranks that work on the same samples together, around a model that data parallelism may wrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.communication.exchange import Exchange
from trainers.data.stream import NO_LABEL, Batch
from trainers.parallel.protocol import Loss, Parallel
from trainers.parallel.ranks import Ranks
from trainers.parallel.states import whole
from trainers.parallel.update import Update


def multiple_of(count: int, tokens: Tensor, fill: int) -> Tensor:
    """Sequences (items, length) with `fill` at their end, so that `count` divides the length."""
    missing = -tokens.shape[1] % count
    return F.pad(tokens, (0, missing), value=fill) if missing else tokens


def _same(value: Any) -> Any:
    return value


def _nothing(network: nn.Module) -> None: ...


@dataclass(frozen=True)
class Shared:
    """Ranks that share their samples.

    Args:
        inner: the model, which knows its collective operations, among all ranks that have an equal
            share of them.
        data: the ranks of the data.
        counts: whether this rank's losses and scores are added to those of the others.
        multiple: sequences are made multiples of it.
        mine: this rank's part of tokens or labels (items, length).
        loss: what the inner model differentiates, of the learner's loss.
        inside: in which context gradients are computed.
        after: completes the gradients of the model.
    """

    inner: Parallel
    data: Ranks
    counts: bool
    multiple: int = 1
    mine: Callable[[Tensor], Tensor] = _same
    loss: Callable[[Loss], Loss] = _same
    inside: Callable[[], AbstractContextManager[None]] = nullcontext
    after: Callable[[nn.Module], None] = _nothing

    collective = True
    owned = None

    @property
    def network(self) -> nn.Module:
        return self.inner.network

    @property
    def exchange(self) -> Exchange | None:
        return self.inner.exchange

    @property
    def update(self) -> Update | None:
        return self.inner.update

    def at(self, progress: float) -> None:
        self.inner.at(progress)

    def gradients(self, parts: Sequence[Batch], loss: Loss) -> None:
        made = [(self._tokens(x), self.labels(y)) for x, y in parts]
        with self.inside():
            self.inner.gradients(made, self.loss(loss))
        self.after(self.network)

    def alone(self, parts: Sequence[Batch], loss: Loss) -> None:
        raise AssertionError("a divided model needs all ranks")

    def evaluate(self, x: Tensor) -> Tensor | None:
        found = self.inner.evaluate(self._tokens(x))
        return None if found is None else whole(found)

    def _tokens(self, x: Tensor) -> Tensor:
        return self.mine(multiple_of(self.multiple, x, 0))

    def labels(self, y: Tensor) -> Tensor:
        return self.mine(multiple_of(self.multiple, y, NO_LABEL))

    def changed(self) -> None:
        self.inner.changed()

    def state(self) -> dict[str, Any]:
        return self.inner.state()

    def restore(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        return self.inner.restore(state, optimizer)

    def close(self) -> None:
        self.inner.close()
