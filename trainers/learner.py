"""A model with its optimizer on every rank: steps, evaluations, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from trainers.communication.averaged import Averaged
from trainers.compression.applied import Compared, Compression
from trainers.criterion import criterion_of
from trainers.data.stream import Batch
from trainers.evaluation import outputs, sums
from trainers.knobs import build_optimizer
from trainers.memory import low_bit
from trainers.memory.compiled import RecompileLimit
from trainers.noise_scale import NoiseScale
from trainers.optimizers import LAMB, LARS, schedule_free
from trainers.optimizers.adascale import scaled
from trainers.parallel import one_by_one
from trainers.parallel.parts import split, split_together
from trainers.parallel.protocol import Forward, Loss, Parallel
from trainers.parallel.ranks import Ranks, averaged_buffers, raising_together
from trainers.parallel.states import on_host, whole
from trainers.parallel.update import Update
from trainers.statistics import Statistics
from trainers.training import Training


class Learner:
    """Training of one classifier step by step: gradients, then the optimizer, then statistics.

    Args:
        model: on the ranks' device, with the same parameters on every rank; it gives the scores
            of the classes in its output's last dimension, or has a `criterion` of its own.
        parallel: the model on the ranks.
        update: who makes the optimizer's step.
        ranks: all of them.
        training: its optimizer and microbatch are used.
        forward: how a batch goes through the model.
        compression: what makes the model smaller (`trainers.compression`); None: nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        parallel: Parallel,
        update: Update,
        ranks: Ranks,
        training: Training,
        forward: Forward,
        compression: Compression | None = None,
    ) -> None:
        self.model = model
        self.parallel = parallel
        self._criterion = criterion_of(model)
        self._ranks = ranks
        self._training = training
        self._forward = forward
        self.compression = compression
        self.prepares = bool(training.compile) or ranks.device.type != "cpu"
        """Whether kernels are compiled or chosen for each input shape."""
        self.loss = torch.zeros((), dtype=torch.float64, device=ranks.device)
        """The sum of this rank's training losses since it was last set to 0."""
        self.statistics = Statistics(model, parallel.owned)
        self._noise = NoiseScale(parallel.data, training.measured_every)
        self.update = scaled(update, self._noise, training.adascale_batch_size)
        self._apart = parallel if isinstance(parallel, Averaged) else None
        self._averages: schedule_free.Averages | None = None
        if training.optimizer in schedule_free.KINDS:
            self._averages = schedule_free.Averages(model, self._pass)
        self._fresh()
        self._limit = RecompileLimit(training.compile, model) if training.compile else None

    def _fresh(self) -> None:
        self.optimizer = build_optimizer(self.model, self._training)
        scales = self._forward.dtype is torch.float16
        self._scaler = torch.amp.GradScaler(self._ranks.device.type) if scales else None
        if self.parallel.exchange is not None:
            self.parallel.exchange.start(self.optimizer)

    def begin(self) -> None:
        """Before steps; the model then has the weights that are trained."""
        if self._apart is not None:
            self._apart.begin()
        if self._averages is None:
            return
        self.parallel.changed()
        self._averages.train(self.optimizer)

    def settle(self) -> None:
        """After steps: what is under way has arrived; the weights are the averages, if any."""
        if self._apart is not None:
            self._apart.arrive()
        if self._averages is not None:
            self.statistics.settle()
            self._averages.settle(self.optimizer)

    def unite(self) -> None:
        """Before evaluations and states, after `settle`: copies of the model become one."""
        if self._apart is not None:
            self.statistics.settle()
            self._apart.settle()

    def at(self, progress: float) -> None:
        """Before each step, with the progress at which it is made, in [0, 1]."""
        self.parallel.at(progress)
        if self.compression is not None:
            self.compression.at(progress)

    def step(self, batch: Batch, samples: int, smoothing: float) -> None:
        """One optimizer step on this rank's share of a global batch of so many samples (labels).

        The gradient is that of the mean loss over the global batch, for any split over ranks.
        """
        measured, most = self._noise.next(len(batch[1]), self._training.microbatch)
        parts = self._parts(batch, samples, most)
        loss = self._loss(parts, samples, smoothing)
        if measured:
            found = one_by_one.gradients(self.parallel, parts, loss, self._forward)
            self._noise.take(found, self._scaler)
        else:
            self.parallel.gradients(parts, loss)
        self.statistics.before(self._scaler)
        self.update.step(self.optimizer, self._scaler)
        self.optimizer.zero_grad()
        if self.compression is not None:
            self.compression.mask()

    def _step_alone(self, batch: Batch, samples: int) -> None:
        """A step of this rank without the others; parameters differ between ranks afterwards."""
        parts = self._parts(batch, samples, self._training.microbatch)
        self.parallel.alone(parts, self._loss(parts, samples, 0.0))
        self.update.alone(self.optimizer, self._scaler)
        self.optimizer.zero_grad()

    def _parts(self, batch: Batch, samples: int, most: int | None) -> list[Batch]:
        data, together = self.parallel.data, self.parallel.collective
        parts = split_together(batch, samples, data, most) if together else split(batch, most)
        if self._averages is not None:
            for x, _ in parts:
                self._averages.keep(x)
        return parts

    def _loss(self, parts: Sequence[Batch], samples: int, smoothing: float) -> Loss:
        """The loss of a part, so scaled that its mean over `data` is that of so many samples."""
        compared: Compared = self._criterion.loss
        if self.compression is not None:
            with self._forward.autocast():
                compared = self.compression.compared(parts, compared)
        together, size = self.parallel.collective, self.parallel.data.size
        how = "sum" if together else "mean"  # a part that all ranks make may be empty on this one

        def loss(out: Tensor, y: Tensor) -> Tensor:
            out, y = out.flatten(0, -2), y.flatten()
            found = whole(compared(out, y, smoothing, how))
            count = 1 if together else y.numel()
            self.loss.add_(found.detach(), alpha=count)
            share = count * size / samples
            if share != 1:
                found = found * share
            return found if self._scaler is None else self._scaler.scale(found)

        return loss

    def metrics(self) -> dict[str, float]:
        """What is known of the steps and the model without a validation."""
        found = self.statistics.metrics()
        for more in (self.compression, self._apart, self._noise):
            found |= {} if more is None else more.metrics()
        if self._limit is not None and self._limit.met:  # some shapes run uncompiled
            found["recompile_limit_met"] = 1.0
        return found

    def measure(self) -> dict[str, float]:
        """Metrics of the model that would be exported now, on rank 0; none on others."""
        assert self.compression is not None
        weights = self.snapshot(exported=False)
        return self.compression.measure(weights) if self._ranks.rank == 0 else {}

    def _pass(self, x: Tensor) -> None:
        with self._forward.autocast():
            self.parallel.evaluate(x)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> tuple[int, float, int]:
        """Over all ranks: correct predictions, summed loss, and samples.

        `batches` are this rank's; the label `NO_LABEL` marks padding. The model stays in training
        mode, with unchanged buffers.
        """
        most, forward = self._training.microbatch, self._forward
        with self._evaluating():
            found = sums(self.parallel, batches, most, forward, self._criterion)
        right, loss, count = self._ranks.sum(found).tolist()
        return int(right), loss, int(count)

    @torch.no_grad()
    def outputs(self, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """As `trainers.evaluation.outputs`; of models whose ranks evaluate each on their own."""
        with self._evaluating(), self._forward.autocast():
            return outputs(self.parallel, batches, self._training.microbatch)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        self.model.eval()
        with averaged_buffers(self.model, self.parallel.data), self._exported():
            yield
        self.model.train()

    def _exported(self, copied: bool = False) -> AbstractContextManager[None]:
        """Within it the weights are those of the exported model."""
        return nullcontext() if self.compression is None else self.compression.exported(copied)

    def trained_loss(self) -> float:
        """The sum of the training losses of all ranks."""
        own = self.loss if self.parallel.counts else torch.zeros_like(self.loss)
        return self._ranks.sum(own.clone()).item()

    @torch.no_grad()
    def snapshot(self, exported: bool = True) -> dict[str, Tensor]:
        """The whole weights as evaluated (or trained), copied to rank 0's host; empty on others."""
        own = self._exported(copied=True) if exported else nullcontext()
        with averaged_buffers(self.model, self.parallel.data), own:
            return on_host(self.parallel.state(), kept=self._ranks.rank == 0)

    def warm_up(self, batches: Iterable[tuple[Batch, int]], evaluated: Iterable[Batch]) -> None:
        """Train on batches of so many samples, evaluate on others; then restore the initial state.

        This compiles, allocates, and lets DDP order its buckets, which takes two steps, and one
        more where gradients are compressed later. Then parameters and buffers are restored, and
        optimizer and scaler built again. A further shape takes one more step on a CPU, and two
        where kernels are compiled or benchmarked.

        Every rank first makes the first batch, the largest, and a step of it alone: where memory
        runs out on one, all raise, and none waits for it. With sharded parameters a step needs all.
        """
        remaining = iter(batches)
        self.begin()
        with raising_together(self._ranks):
            before = {k: v.clone() for k, v in self.model.state_dict().items()}
            batch, samples = next(remaining)
            if self._ranks.size > 1 and not self.parallel.collective:
                self._step_alone(batch, samples)
        self._rehearse(batch, samples, 2)
        exchange = self.parallel.exchange
        if exchange is not None and exchange.memory.steps <= exchange.begins:
            exchange.memory.steps = exchange.begins  # the next step is the first compressed one
            self._rehearse(batch, samples, 1)
        for batch, samples in remaining:
            self._rehearse(batch, samples, 2 if self.prepares else 1)
        self.settle()
        self.unite()
        self.evaluate(evaluated)
        self.model.load_state_dict(before)
        self.parallel.changed()
        self.loss.zero_()
        self.statistics.clear()
        self._noise.clear()
        self._fresh()

    def _rehearse(self, batch: Batch, samples: int, times: int) -> None:
        for _ in range(times):
            self.statistics.next(last=True)
            self.step(batch, samples, 0.0)
        if self._noise.clear():
            self.step(batch, samples, 0.0)

    def state(self) -> dict[str, Any]:
        """This rank's checkpoint after `unite`; its tensors are those that are trained."""
        exchange, compression = self.parallel.exchange, self.compression
        return {
            "model": self.parallel.state(),
            "optimizer": low_bit.whole(self.update.state(self.optimizer)),
            "scaler": {} if self._scaler is None else self._scaler.state_dict(),
            "exchange": {} if exchange is None else exchange.memory.state(),
            "compression": {} if compression is None else compression.state(),
            "noise_scale": self._noise.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore `state`; the optimizer keeps the settings of this configuration."""
        state = self.parallel.restore(state, self.optimizer)
        if self.compression is not None:
            self.compression.restore(state.get("compression", {}))
        self._noise.restore(state.get("noise_scale", {}))
        kept = ("params", *(schedule_free.RUNNING if self._averages is not None else ()))
        groups = self.optimizer.param_groups
        own = [{k: v for k, v in group.items() if k not in kept} for group in groups]
        self.optimizer.load_state_dict(self.update.own(self.optimizer, state["optimizer"]))
        low_bit.shrink(self.optimizer)
        for group, settings in zip(self.optimizer.param_groups, own, strict=True):
            group.update(settings)
        if self.parallel.exchange is not None:
            self.parallel.exchange.memory.restore(state.get("exchange", {}))
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])

    def close(self) -> None:
        """Free DDP's hooks and the memory of model and optimizer, whatever references remain."""
        if self._limit is not None:
            self._limit.close()
        self.optimizer.state.clear()
        if isinstance(self.optimizer, LARS | LAMB):
            self.optimizer.kept.clear()
        self._averages = self._apart = self.compression = None
        self.parallel.close()
        del self.parallel, self.update, self.model, self.optimizer, self.statistics
