"""What stands for the rest of a training where only its memory is of interest.

Blank data, other ranks that do not exist (torch's process group `fake`), and parts of a step that
do on tensors without data what the real ones do on others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from trainers.communication.exchange import Exchange
from trainers.data.stream import Batch
from trainers.parallel import mesh
from trainers.parallel.protocol import Forward, Loss
from trainers.parallel.ranks import Ranks
from trainers.parallel.single import Single
from trainers.parallel.update import Update

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Blank:
    """What stands for a trainer's data.

    Args:
        stream: has what `Task.model` reads of a stream.
        batch: so many blank items of a size.
        evaluated: items in the largest forward pass of an evaluation.
        evaluated_size: their size.
        kept: bytes of the data that stay on the device.
    """

    stream: Any
    batch: Callable[[int, int], Batch]
    evaluated: int
    evaluated_size: int
    kept: int = 0


@dataclass(frozen=True)
class Counted(Forward):
    """Forward passes each of which is the first to the tracker: it refuses a second."""

    tracker: Any = None

    def scores(self, network: nn.Module, x: Tensor) -> Tensor:
        self.tracker.reset_mod_stats()
        try:
            return Forward.scores(self, network, x)
        except DataDependentOutputException:
            what = "the model computes with numbers that are not known before"
            raise ValueError(f"{what}: its memory cannot be predicted") from None


class Copies(Single):
    """A copy of the model whose gradients lie in buckets that are kept, as DDP's do.

    Args:
        exchange: of gradients, in every step.
    """

    def __init__(
        self, model: nn.Module, data: Ranks, forward: Forward, exchange: Exchange | None = None
    ) -> None:
        super().__init__(model, data, forward)
        self.exchange = exchange
        self.update = None if exchange is None else exchange.update
        self._buckets = [torch.zeros_like(p) for p in model.parameters()]

    def gradients(self, parts: Sequence[Batch], loss: Loss) -> None:
        for parameter, bucket in zip(self.network.parameters(), self._buckets, strict=True):
            parameter.grad = bucket
        super().gradients(parts, loss)
        if self.exchange is not None:
            self.exchange.next()
            with without_numbers():
                self.exchange.average()

    alone = gradients


class BlankStep:
    """An optimizer's step, as far as it asks for no number: blank tensors have none."""

    def __init__(self, inner: Update) -> None:
        self._inner = inner
        self.state, self.own = inner.state, inner.own

    def step(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        train: Callable[[], None] | None = getattr(optimizer, "train", None)
        with without_numbers():
            if train is not None:  # a warm-up that ended at a number left it as it evaluates
                train()
            self._inner.step(optimizer, None)

    alone = step


class _Norm(torch.autograd.Function):
    """RMSNorm as one kernel: it keeps its input, and a number for each item."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class _Attention(torch.autograd.Function):
    """Attention as one kernel: its output lies as (batch, length, heads, width)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = q.new_empty(q.transpose(1, 2).shape).transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        q, k, v, *_ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@contextmanager
def kernels_of_a_gpu() -> Iterator[None]:
    """RMSNorm, and attention without a mask, as a GPU has them: one kernel each.

    A CPU computes a norm in several operations, of which three outputs are kept, and attention
    whose output has to be copied for the next layer.
    """
    norm, attention = F.rms_norm, F.scaled_dot_product_attention

    def rms_norm(
        input: Tensor,  # torch's names
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        if weight is None or weight.ndim > 1:
            return norm(input, normalized_shape, weight, eps)
        found: Tensor = _Norm.apply(input, weight)  # type: ignore[no-untyped-call]
        return found

    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        alike = query.ndim == 4 and query.shape == key.shape == value.shape
        if not alike or attn_mask is not None or dropout_p:
            more = attn_mask, dropout_p, is_causal
            return attention(query, key, value, *more, scale=scale, enable_gqa=enable_gqa)
        found: Tensor = _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]
        return found

    F.rms_norm = rms_norm
    F.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        F.rms_norm, F.scaled_dot_product_attention = norm, attention


@contextmanager
def without_numbers() -> Iterator[None]:
    """The body ends where it reads a number of a blank tensor."""
    with suppress(DataDependentOutputException):
        yield


@contextmanager
def first_of(count: int) -> Iterator[Ranks]:
    """The first of so many ranks, of which there is no other.

    Raises:
        RuntimeError: several ranks, and the process has a process group.
    """
    if count == 1:
        yield Ranks(0, 1, CPU)
        return
    if dist.is_initialized():
        raise RuntimeError("a process with a process group cannot stand for one of other ranks")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield Ranks(0, count, CPU)
    finally:
        mesh.forget()
        dist.destroy_process_group()
