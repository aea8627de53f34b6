"""Forward and backward passes of a click model whose weights are kept elsewhere."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from trainers.models.clicks import Batch


@dataclass(frozen=True)
class Lookup:
    """The distinct rows that a batch needs.

    Args:
        rows: ascending.
        index: (N, features), which of them each feature of each sample is.
    """

    rows: Tensor
    index: Tensor


def lookup(batch: Batch) -> Lookup:
    """The rows of a batch; one that several samples have is asked for and sent once."""
    rows, index = torch.unique(batch.categories, return_inverse=True)
    return Lookup(rows, index)


@dataclass(frozen=True)
class Gradient:
    """Of a batch's loss: of its distinct rows, of all dense weights in one column, and the loss."""

    rows: Tensor
    dense: Tensor
    loss: float


class Net:
    """The dense part of a model: its shapes here, its weights as one column on the host.

    Args:
        model: on the device of the passes.
        microbatch: the most samples of one pass; None: all.
    """

    def __init__(self, model: nn.Module, device: torch.device, microbatch: int | None) -> None:
        found = dict(model.named_parameters())
        self.first = torch.cat([p.detach().flatten() for p in found.values()]).unsqueeze(1).cpu()
        self._shapes = {name: p.shape for name, p in found.items()}
        self._model = model.to(device)
        self._device = device
        self._most = microbatch

    def twin(self) -> Net:
        """The same for another thread: a module can be called by one thread at a time."""
        return copy.deepcopy(self)

    def gradient(
        self, rows: Tensor, dense: Tensor, batch: Batch, index: Tensor, samples: float
    ) -> Gradient:
        """Of the sum of a batch's losses, divided by `samples`.

        Args:
            rows: weights of the batch's distinct rows.
            dense: all dense weights, which other threads may change meanwhile.
            index: as of the batch's `Lookup`.
        """
        total = 0.0
        own = rows.detach().to(self._device).requires_grad_()
        flat = dense.data.to(self._device).requires_grad_()
        sums = [torch.zeros_like(own), torch.zeros_like(flat)]
        most = self._most or max(len(batch), 1)
        for low in range(0, len(batch), most):
            part = slice(low, low + most)
            clicks = batch.clicks[part].to(self._device)
            logits = self._logits(own, flat, index[part], batch.dense[part])
            loss = F.binary_cross_entropy_with_logits(logits, clicks, reduction="sum")
            found = torch.autograd.grad(loss / samples, (own, flat))
            sums = [a + b for a, b in zip(sums, found, strict=True)]
            total += loss.item()
        return Gradient(sums[0].cpu(), sums[1].cpu(), total)

    @torch.no_grad()
    def logits(self, rows: Tensor, dense: Tensor, batch: Batch, index: Tensor) -> Tensor:
        """The logits of a batch, on the host."""
        own, flat = rows.to(self._device), dense.to(self._device)
        return self._logits(own, flat, index, batch.dense).cpu()

    def _logits(self, rows: Tensor, flat: Tensor, index: Tensor, dense: Tensor) -> Tensor:
        weights, low = {}, 0
        for name, shape in self._shapes.items():
            weights[name] = flat[low : low + shape.numel(), 0].view(shape)
            low += shape.numel()
        embedded = F.embedding(index.to(self._device), rows)
        found: Tensor = functional_call(self._model, weights, (embedded, dense.to(self._device)))
        return found
