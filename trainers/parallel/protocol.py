"""What a learner asks of each way to divide the work of a training over ranks: the gradients.

A pipeline owns its forward and backward passes, and a sharded model gathers its weights in them. So
a learner asks for gradients, and knows nothing of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.communication.exchange import Exchange
from trainers.data.stream import Batch
from trainers.memory.compiled import mark_varying
from trainers.parallel.exposed import Exposed
from trainers.parallel.ranks import Ranks
from trainers.parallel.update import Update

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of a part's scores and labels; what is differentiated."""


@dataclass(frozen=True)
class Owned:
    """Of a model that is divided by whole parameters, those whose step this rank makes.

    Args:
        parameters: these; every one belongs to a single rank.
        ranks: those that have all of them together.
    """

    parameters: Sequence[Tensor]
    ranks: Ranks


@dataclass(frozen=True)
class Forward:
    """How a batch goes through a model.

    Args:
        device: of the model.
        dtype: of autocast; None: no autocast.
        layout: the memory format of the model's input.
        varying: dimensions of its input that change during training, for a compiled model.
        exposed: measures the communication of backward passes; None: it is not measured.
    """

    device: torch.device
    dtype: torch.dtype | None = None
    layout: torch.memory_format = torch.contiguous_format
    varying: tuple[int, ...] = ()
    exposed: Exposed | None = None

    def scores(self, network: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = network(mark_varying(x.contiguous(memory_format=self.layout), self.varying))
        return found

    def autocast(self) -> AbstractContextManager[None]:
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def backward(self, network: nn.Module, part: Batch, loss: Loss) -> None:
        """Add a part's gradient to those of the parameters."""
        x, y = part
        with self.autocast():
            found = loss(self.scores(network, x), y)
        if self.exposed is None:
            torch.autograd.backward(found)
        else:
            self.exposed.backward(found)

    def waiting(self) -> AbstractContextManager[None]:
        """A part of a step that only communicates."""
        return nullcontext() if self.exposed is None else self.exposed.waiting()


class Parallel(Protocol):
    """A model on the ranks of a training."""

    @property
    def network(self) -> nn.Module:
        """What is called in training; it is kept until `close`."""
        ...

    @property
    def data(self) -> Ranks:
        """Which part of every batch is this rank's, and the divisor of the gradients' mean.

        Ranks that work on the same samples, as those of one pipeline, have the same part.
        """
        ...

    @property
    def collective(self) -> bool:
        """Whether a forward pass is one of all ranks, so that all must make equally many."""
        ...

    @property
    def counts(self) -> bool:
        """Whether this rank's part of an evaluation is added to the others'.

        Of the ranks that have the same scores one alone counts.
        """
        ...

    @property
    def owned(self) -> Owned | None:
        """This rank's parameters, where ranks have different ones; None: all."""
        ...

    @property
    def exchange(self) -> Exchange | None:
        """What copies exchange in place of whole gradients; None: nothing else."""
        ...

    def gradients(self, parts: Sequence[Batch], loss: Loss) -> None:
        """Add up the gradients of the parts' losses, and average them over `data`."""
        ...

    def alone(self, parts: Sequence[Batch], loss: Loss) -> None:
        """As `gradients`, of this rank without the others; never where passes are `collective`."""
        ...

    def evaluate(self, x: Tensor) -> Tensor | None:
        """The scores of a batch, under the caller's autocast; None on ranks without them."""
        ...

    def labels(self, y: Tensor) -> Tensor:
        """Of a batch's labels those of the scores that `evaluate` gives here."""
        ...

    @property
    def update(self) -> Update | None:
        """Who makes the optimizer's step; None: as the plan says."""
        ...

    def at(self, progress: float) -> None:
        """Take the scheduled settings of this progress, in [0, 1], for the next step."""
        ...

    def changed(self) -> None:
        """Forget what is kept of weights that were changed otherwise than by a step."""
        ...

    def state(self) -> dict[str, Any]:
        """This rank's weights and buffers; the tensors are those that are trained."""
        ...

    def restore(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        """Take over the weights of a learner's state, which may have been saved under another plan.

        Returns:
            the state, with the optimizer's tensors as its parameters are here.
        """
        ...

    def close(self) -> None:
        """Free what a process would keep of the model."""
        ...
