"""A rank's copy of the model as one vector, and what ranks that differ send each other of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.communication.exchange import gradients
from trainers.parallel.ranks import Ranks, fill
from trainers.readers import Schedule


class Sending:
    """A mean over the ranks that travels while training goes on.

    Args:
        flat: this rank's summand, which becomes the mean.
        work: of torch's collective; None: the mean is there.
        waiting: measures a part of a step that only communicates.
    """

    def __init__(
        self,
        flat: Tensor,
        work: dist.Work | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._flat, self._work, self._waiting = flat, work, waiting

    def mean(self) -> Tensor:
        """Wait for it."""
        if self._work is not None:
            with self._waiting():
                self._work.wait()
            self._work = None
        return self._flat


class Copies:
    """The parameters of a rank's copy, and means of such vectors over the ranks.

    Args:
        model: in which this rank makes steps.
        ranks: that have a copy each.
        waiting: measures a part of a step that only communicates.
    """

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.ranks = ranks
        self._waiting = waiting
        self._model = model
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    def weights(self) -> Tensor:
        """A copy of them, in one vector."""
        return torch.cat([p.detach().flatten() for p in self._parameters])

    def set(self, flat: Tensor) -> None:
        fill(self._parameters, flat)

    def gradients(self) -> Tensor:
        """A copy of them, in one vector; 0 where a step did not reach a parameter."""
        return torch.cat([gradient.flatten() for gradient in gradients(self._model)])

    def set_gradients(self, flat: Tensor) -> None:
        fill(gradients(self._model), flat)

    def no_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def begin_mean(self, flat: Tensor, ranks: Ranks | None = None) -> Sending:
        """Begin to make a vector its mean over all ranks, or over some; in place."""
        ranks = ranks or self.ranks
        if ranks.size == 1:
            return Sending(flat)
        flat.div_(ranks.size)
        return Sending(flat, dist.all_reduce(flat, group=ranks.group, async_op=True), self._waiting)

    def mean(self, flat: Tensor, ranks: Ranks | None = None) -> Tensor:
        """As `begin_mean`, waited for."""
        return self.begin_mean(flat, ranks).mean()


def sent(weights: int, period: int) -> float:
    """The bytes that a rank gives to sums where its weights are one every few steps: their mean.

    Args:
        weights: bytes of the parameters.

    >>> sent(4000, period=8)
    500.0
    """
    return weights / period


class Every:
    """Counts steps, and says after which ones ranks exchange.

    They do in the first step of all, which is one of the warm-up: so that allocates what an
    exchange needs. `restart` begins to count.

    Args:
        period: steps from one exchange to the next, rounded; a schedule.
    """

    def __init__(self, period: Schedule) -> None:
        self._period = period
        self.at(0.0)
        self.since = self._now

    def at(self, progress: float) -> None:
        self._now = max(1, round(self._period(progress)))

    def restart(self, since: int = 0) -> None:
        """Count from an exchange so many steps ago."""
        self.since = since

    def next(self) -> bool:
        """Count a step; whether ranks exchange after it."""
        self.since += 1
        due = self.since >= self._now
        if due:
            self.since = 0
        return due


class Averaging(Protocol):
    """How copies that make steps of their own are kept together.

    Every rank calls the methods in the same steps. What `shared` gives is equal on all ranks.
    """

    def at(self, progress: float) -> None:
        """Take the scheduled settings of this progress, in [0, 1]."""
        ...

    def gradients(self) -> bool:
        """After the passes of a step, with this rank's gradients; whether there are any to step."""
        ...

    def stepped(self) -> None:
        """After the optimizer's step."""
        ...

    def arrived(self) -> None:
        """Wait for what travels; it is used when it would have been."""
        ...

    def whole(self) -> Tensor:
        """A copy of the one model that is evaluated and saved; one of all ranks."""
        ...

    def restart(self) -> None:
        """Begin at the weights of the model, which are equal on all ranks."""
        ...

    def metrics(self) -> dict[str, float]:
        """What was measured since the last call."""
        ...

    def shared(self) -> dict[str, Any]:
        """For a checkpoint, after `arrived`: what goes on on any number of ranks."""
        ...

    def own(self) -> dict[str, Any]:
        """For a checkpoint, after `arrived`: what only this rank has beside its weights."""
        ...

    def restore(self, shared: dict[str, Any], own: dict[str, Any] | None) -> None:
        """Go on from them, after `restart`.

        Args:
            own: None on another number of ranks, which begin at the one model.
        """
        ...
