"""A model with its optimizer on every rank: steps, evaluations, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainers.compiled import RecompileLimit, mark_varying
from trainers.distributed import Ranks, averaged_buffers, raising_together
from trainers.knobs import build_optimizer
from trainers.optimizers import LAMB, LARS
from trainers.precision import DTYPES
from trainers.sharding import in_step, on_mesh_of, sharded, split, unsynchronised
from trainers.statistics import Statistics
from trainers.stream import NO_LABEL, Batch
from trainers.training import Training

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

EVALUATED_MICROBATCHES = 4  # the most in a forward pass of an evaluation

_NAMES = ("forward_sync_buffers", "broadcast_buffers")  # the second up to torch 2.12
_OWN_BUFFERS: dict[str, Any] = {
    next(n for n in _NAMES if n in signature(DistributedDataParallel).parameters): False
}
"""Every rank has its own buffers during training; see `averaged_buffers`."""


def _split(batch: Batch, most: int | None) -> list[Batch]:
    """Split the batch into parts of up to `most` items; None: one part."""
    x, y = batch
    if most is None or len(y) <= most:
        return [batch]
    return list(zip(torch.split(x, most), torch.split(y, most), strict=True))


class Learner:
    """Distributed training of one classifier, step by step: data-parallel, sharded if asked.

    Args:
        model: on the ranks' device, with the same parameters on every rank; it gives the scores
            of the classes in its output's last dimension.
        training: its optimizer, precision and microbatch are used.
        layout: the memory format of its input.
        units: modules that are sharded over the ranks, each on its own; None: every rank has the
            whole model.
        varying: dimensions of its input that change during training.
    """

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        training: Training,
        layout: torch.memory_format,
        units: Sequence[nn.Module] | None = None,
        varying: tuple[int, ...] = (),
    ) -> None:
        self.model = model
        self._ranks = ranks
        self._training = training
        self._dtype = DTYPES.get(training.precision)
        self._layout = layout
        self._network: nn.Module = model
        self._sharded: FSDPModule | None = None
        if units is not None and ranks.size > 1:
            self._sharded = sharded(model, units, self._dtype)
        elif ranks.size > 1:
            self._network = DistributedDataParallel(
                model,
                device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                **_OWN_BUFFERS,
            )
        self.prepares = training.compile or ranks.device.type != "cpu"
        """Whether kernels are compiled or chosen for each input shape."""
        self._varying = varying if training.compile else ()
        self.loss = torch.zeros((), dtype=torch.float64, device=ranks.device)
        """The sum of this rank's training losses since it was last set to 0."""
        self.statistics = Statistics(model)
        self._fresh()
        self._limit = RecompileLimit() if training.compile else None

    def _fresh(self) -> None:
        self.optimizer = build_optimizer(self.model, self._training)
        scales = self._dtype is torch.float16
        self._scaler = torch.amp.GradScaler(self._ranks.device.type) if scales else None

    def step(self, batch: Batch, samples: int, smoothing: float) -> None:
        """One optimizer step on this rank's share of a global batch of so many samples (labels).

        The gradient is that of the mean loss over the global batch, for any split over ranks.
        """
        parts = self._parts(batch, samples)
        for part in parts[:-1]:
            with self._unsynchronised():
                self._backward(part, samples, smoothing)
        self._backward(parts[-1], samples, smoothing)
        self.statistics.before(self._scaler)
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self.optimizer.zero_grad()

    def _step_alone(self, batch: Batch, samples: int) -> None:
        """A step of this rank without the others; parameters differ between ranks afterwards."""
        with self._unsynchronised():
            for part in self._parts(batch, samples):
                self._backward(part, samples, 0.0)
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self.optimizer.zero_grad()

    def _parts(self, batch: Batch, samples: int) -> list[Batch]:
        if self._sharded is None:
            return _split(batch, self._training.microbatch)
        return split(batch, samples, self._ranks, self._training.microbatch)

    def _backward(self, part: Batch, samples: int, smoothing: float) -> None:
        x, y = part
        how = "mean" if self._sharded is None else "sum"  # parts of a sharded batch may be empty
        with self._autocast():
            out = self._network(self._input(x)).flatten(0, -2)
            loss = F.cross_entropy(out, y.flatten(), label_smoothing=smoothing, reduction=how)
        self.loss.add_(loss.detach(), alpha=y.numel() if how == "mean" else 1)
        share = (y.numel() if how == "mean" else 1) * self._ranks.size / samples
        if share != 1:
            loss = loss * share
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    @property
    def limit_met(self) -> bool:
        """Whether some shapes run uncompiled as there are too many."""
        return self._limit is not None and self._limit.met

    def _input(self, x: Tensor) -> Tensor:
        return mark_varying(x.contiguous(memory_format=self._layout), self._varying)

    def _unsynchronised(self) -> AbstractContextManager[None]:
        if isinstance(self._network, DistributedDataParallel):
            return self._network.no_sync()
        return nullcontext() if self._sharded is None else unsynchronised(self._sharded)

    def _autocast(self) -> AbstractContextManager[None]:
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._ranks.device.type, self._dtype)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> tuple[int, float, int, float]:
        """Over all ranks: correct predictions, summed loss, samples, and the summed training loss.

        `batches` are this rank's; the label `NO_LABEL` marks padding. The model stays in training
        mode, with unchanged buffers.
        """
        sums = torch.zeros(4, dtype=torch.float64, device=self._ranks.device)
        self.model.eval()
        with averaged_buffers(self.model, self._ranks), self._autocast():
            for x, y in self._fitting(batches):
                out = self.model(self._input(x))
                out, y = out.flatten(0, -2), y.flatten()
                sums[0] += (out.argmax(1) == y).sum()
                sums[1] += F.cross_entropy(out.float(), y, ignore_index=NO_LABEL, reduction="sum")
                sums[2] += (y != NO_LABEL).sum()
        self.model.train()
        sums[3] = self.loss
        right, loss, count, trained = self._ranks.sum(sums).tolist()
        return int(right), loss, int(count), trained

    def _fitting(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches in parts of a few microbatches: no gradients need less memory."""
        microbatch = self._training.microbatch
        most = microbatch and microbatch * EVALUATED_MICROBATCHES
        parts = (part for batch in batches for part in _split(batch, most))
        return parts if self._sharded is None else in_step(list(parts), self._ranks)

    def warm_up(self, batches: Iterable[tuple[Batch, int]], evaluated: Iterable[Batch]) -> None:
        """Train on batches of so many samples, evaluate on others; then restore the initial state.

        This compiles, allocates, and lets DDP order its buckets, which takes two steps. Then
        parameters and buffers are restored, and optimizer and scaler are built again. A further
        shape takes one more step on a CPU, and two where kernels are compiled or benchmarked.

        Every rank first makes the first batch, the largest, and a step of it alone: where memory
        runs out on one, all raise, and none waits for it. With sharded parameters a step needs all.
        """
        remaining = iter(batches)
        with raising_together(self._ranks):
            before = {k: v.clone() for k, v in self.model.state_dict().items()}
            batch, samples = next(remaining)
            if self._ranks.size > 1 and self._sharded is None:
                self._step_alone(batch, samples)
        self._rehearse(batch, samples, 2)
        for batch, samples in remaining:
            self._rehearse(batch, samples, 2 if self.prepares else 1)
        self.evaluate(evaluated)
        self.model.load_state_dict(before)
        self.loss.zero_()
        self.statistics.clear()
        self._fresh()

    def _rehearse(self, batch: Batch, samples: int, times: int) -> None:
        for _ in range(times):
            self.statistics.next(last=True)
            self.step(batch, samples, 0.0)

    def state(self) -> dict[str, Any]:
        """This rank's checkpoint, for `restore`; its tensors are those that are trained."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scaler": {} if self._scaler is None else self._scaler.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore `state`; the optimizer keeps the settings of this configuration."""
        if self._sharded is not None:
            state = on_mesh_of(state, self.model)
        self.model.load_state_dict(state["model"])
        own = [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, settings in zip(self.optimizer.param_groups, own, strict=True):
            group.update(settings)
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])

    def close(self) -> None:
        """Free DDP's hooks and the memory of model and optimizer, whatever references remain."""
        if self._limit is not None:
            self._limit.close()
        self.optimizer.state.clear()
        if isinstance(self.optimizer, LARS | LAMB):
            self.optimizer.kept.clear()
        del self._network, self._sharded, self.model, self.optimizer, self.statistics
