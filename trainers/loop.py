"""The training loop of all trainers: progress, knobs, milestones, checkpoints, warm-up."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import cache
from typing import Any, Generic

import torch

from autotune.trial import Change, Milestone
from trainers import parallelize
from trainers.communication import synchronization
from trainers.course import Course
from trainers.data.stream import Batch, passes
from trainers.knobs import Knobs, fast, is_constant
from trainers.learner import Learner
from trainers.memory.compiled import compile_model
from trainers.memory.precision import DTYPES, numerics
from trainers.models.flops import unallocated
from trainers.optimizers import adascale
from trainers.parallel.exposed import Exposed
from trainers.parallel.protocol import Forward
from trainers.parallel.ranks import Ranks
from trainers.shapes import sampled, warmed_up
from trainers.task import S, Task
from trainers.training import Training
from trainers.validation_process import Beside


def run(
    training: Training, ranks: Ranks, task: Task[S]
) -> Generator[Milestone, Change | None, None]:
    """Train until closed, or until `max_epochs`; then free everything.

    Raises:
        ValueError: a precision that the ranks' device does not have.
    """
    with numerics(training.precision, training.deterministic, ranks.device):
        loop = Loop(training, ranks, task)
        try:
            yield from loop.milestones()
        finally:
            loop.close()


class Loop(Generic[S]):
    """One training: its data, learner, knobs and progress."""

    def __init__(self, training: Training, ranks: Ranks, task: Task[S]) -> None:
        state = training.state or {"seen": 0}
        self._ranks = ranks
        self._data = parallelize.data_ranks(training.plan, ranks)
        synchronization.check_ranks(training.synchronization, ranks.size)
        self._training = training = training.on(self._data.size)
        self._exposed = Exposed(ranks.device) if ranks.size > 1 else None
        self._task = task
        if training.adascale_batch_size is not None and not is_constant(task.size):
            raise ValueError(f"adascale_batch_size needs a {task.size_key} without a schedule")
        self._size = fast(task.size)
        self._seen: int = state["seen"]
        self._knobs = Knobs(training, self._data.size, state)
        with ExitStack() as opened:  # closed if what follows raises
            self._stream = task.stream(self._step_at, self._data)
            opened.callback(self._stream.close)
            self._plan()
            self._beside = self._validating()
            if self._beside is not None:
                opened.callback(self._beside.close)
            self._learner = self._make_learner()
            self._adascale = adascale.of(self._learner.update)
            opened.callback(self._learner.close)
            self._learner.warm_up(self._warmed(), self._evaluated())
            if self._adascale is not None:
                self._adascale.restart(state.get("adascale_steps", 0.0))
            if training.state:
                self._learner.restore(state["learner"])
            if self._beside is not None:
                self._beside.ready()
            self._opened = opened.pop_all()

    def _validating(self) -> Beside | None:
        """The process that validates beside training, where it is the first rank's to start."""
        again = self._task.again
        if not self._beside_training:
            return None
        if again is None:
            raise ValueError("validation must be 'inline' in this trainer, got 'beside'")
        return None if self._ranks.rank else Beside(again, self._training)

    @property
    def _beside_training(self) -> bool:
        return self._training.validation == "beside"

    def _plan(self) -> None:
        """The course, and what is counted between milestones."""
        self._course = Course.of(self._training, self._stream.train_size)
        self._trained = 0
        self._seen_by_size: Counter[int] = Counter()
        self._seconds = 0.0

    def _make_learner(self) -> Learner:
        training, task, device = self._training, self._task, self._ranks.device
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(training.seed)
            model = task.model(self._stream)
        counted = unallocated(model)  # whole, as it is no longer once ranks have divided it
        self._flops = cache(lambda size: task.flops(counted, size))
        compress = task.compression
        compression = compress(model, self._stream, device) if compress is not None else None
        model = model.to(device, memory_format=task.layout)  # type: ignore[call-overload]
        units = parallelize.prepared(training.plan, model, self._ranks)
        compile_model(model, units, training.compile)
        varying: tuple[int, ...] = () if is_constant(training.batch_size) else (0,)
        varying += () if is_constant(task.size) else task.dims
        forward = Forward(
            device,
            DTYPES.get(training.precision),
            task.layout,
            varying if training.compile is True else (),
            self._exposed,
        )
        accumulates = (training.microbatch, training.measured_every) != (None, None)
        given = training.plan, model, units, self._ranks, forward, accumulates, None
        parallel = parallelize.parallel(
            *given, training.gradient_compression, training.synchronization
        )
        update = parallelize.update(training.plan, self._ranks, parallel, self._exposed)
        return Learner(model, parallel, update, self._ranks, training, forward, compression)

    def milestones(self) -> Generator[Milestone, Change | None, None]:
        change = yield self._milestone(0.0)
        while self._seen < self._course.end:
            if change is not None:
                self._knobs.change(change)
            waited = self._stream.waited
            self._train_until(self._course.next(self._seen))
            change = yield self._milestone(self._stream.waited - waited)
        if self._beside is not None:
            self._beside.settle()

    @property
    def _counted(self) -> float:
        """The samples by which schedules progress."""
        if self._adascale is None:
            return self._seen
        return self._adascale.samples(self._task.samples(round(self._size(0.0))))

    def _train_until(self, target: float) -> None:
        """Train until `target` samples are seen; synchronise with the device at the end only."""
        knobs, stream, learner, task = self._knobs, self._stream, self._learner, self._task
        learner.loss.zero_()
        learner.statistics.clear()
        if self._exposed is not None:
            self._exposed.clear()
        self._seen_by_size.clear()
        if self._ranks.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._ranks.device)
        begun, first = time.perf_counter(), self._seen
        knobs.set(learner.optimizer, self._course.progress(self._counted))
        learner.begin()
        while self._seen < target:
            progress = self._course.progress(self._counted)
            batch_size, size = knobs.batch_size(progress), round(self._size(progress))
            knobs.turn(learner.optimizer, progress)
            learner.at(progress)
            samples = batch_size * task.samples(size)
            batch = stream.take(self._seen, batch_size, size)
            learner.statistics.next(last=self._seen + samples >= target)
            learner.step(batch, samples, knobs.smoothing(progress))
            self._seen += samples
            self._seen_by_size[size] += samples
        learner.settle()
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize(self._ranks.device)
        self._trained, self._seconds = self._seen - first, time.perf_counter() - begun

    def _step_at(self, seen: int) -> tuple[int, int]:
        return self._planned(self._course.progress(seen))

    def _planned(self, progress: float) -> tuple[int, int]:
        """Batch size and size of the step at `progress`."""
        return self._knobs.batch_size(progress), round(self._size(progress))

    def _milestone(self, data_seconds: float) -> Milestone:
        measure = self._learner.measure if self._task.compression is not None else None
        return Milestone(self._seen, self._evaluate, self._state, data_seconds, measure=measure)

    def _evaluate(self) -> dict[str, float] | Future[dict[str, float]]:
        self._learner.unite()  # here, as no step of the training needs it
        if self._beside_training:
            return self._submitted()
        right, loss, count = self._learner.evaluate(self._stream.validation())
        found = {"val_accuracy": right / count, "val_loss": loss / count}
        if self._task.further is not None:
            found |= self._task.further(self._stream, self._learner.outputs)
        return {**found, **self._measured()}

    def _submitted(self) -> Future[dict[str, float]]:
        """The metrics once this state has been validated; on other ranks what they have measured.

        Every rank gives a future, so that all report at the same milestone.
        """
        weights, metrics = self._learner.snapshot(), self._measured()
        if self._beside is not None:
            return self._beside.submit(weights, metrics)
        own: Future[dict[str, float]] = Future()
        own.set_result(metrics)
        return own

    def _measured(self) -> dict[str, float]:
        """What is known of the training without a validation."""
        trained, progress = self._learner.trained_loss(), self._course.progress(self._counted)
        batch_size, size = self._planned(progress)
        metrics = {
            "lr": self._knobs.lr(progress),
            "momentum": self._knobs.momentum(progress),
            "batch_size": float(batch_size),
            self._task.size_key: float(size),
            "progress": self._counted / self._course.horizon,
            **adascale.metrics(self._adascale),
        }
        if self._trained:
            metrics |= self._learner.metrics()
            metrics["train_loss"] = trained / self._trained
            metrics["samples_per_second"] = self._trained / self._seconds
            flops = sum(self._flops(size) * n for size, n in self._seen_by_size.items())
            if math.isfinite(flops):
                metrics["flops_per_second"] = flops / self._seconds
            if self._ranks.device.type == "cuda":
                most = torch.cuda.max_memory_allocated(self._ranks.device)
                metrics["peak_memory_bytes"] = float(most)
            if self._exposed is not None:
                metrics["exposed_communication"] = self._share(self._exposed.seconds())
        return metrics

    def _share(self, seconds: float) -> float:
        """Seconds as a share of those of the steps, the mean over all ranks."""
        own = torch.tensor(seconds / self._seconds, device=self._ranks.device)
        return self._ranks.sum(own).item() / self._ranks.size

    def _state(self) -> dict[str, Any]:
        self._learner.unite()
        counted = {} if self._adascale is None else {"adascale_steps": self._adascale.steps}
        changed, learner = self._knobs.state(), self._learner.state()
        return {"seen": self._seen, **counted, **changed, "learner": learner}

    def _evaluated(self) -> Iterator[Batch]:
        """Dummy batches of an evaluation's shapes, or one of at most a step's if that suffices."""
        counts = self._stream.evaluated()
        if not self._learner.prepares:
            batch_size, _ = self._step_at(self._seen)
            most = passes(self._local(batch_size), self._training.microbatch)[0]
            counts = tuple(min(count, most) for count in counts[:1])
        for count in counts:
            yield self._stream.dummy(count)

    def _local(self, batch_size: int) -> int:
        start, stop = self._data.share(0, batch_size)
        return stop - start

    def _warmed(self) -> Iterator[tuple[Batch, int]]:
        """Batches of all shapes of the remaining training, or of the most important ones.

        With the samples of the global batch. All ranks get the same number of forward passes.
        """
        now, end = self._course.progress(self._seen), self._course.progress(self._course.end)
        scheduled = self._training.batch_size, self._task.size
        steps = [self._planned(at) for at in sampled(scheduled, now, max(now, end))]
        for batch_size, size in warmed_up(steps, self._data.size, self._training.microbatch):
            local = self._local(batch_size)
            if self._learner.parallel.collective:
                local = -(-batch_size // self._data.size)
            count = sum(passes(local, self._training.microbatch))
            x, y = self._stream.warm(self._seen, batch_size, size)
            yield (x[:count], y[:count]), count * self._data.size * self._task.samples(size)

    def close(self) -> None:
        """Free the model, DDP's hooks and the stream's processes."""
        self._opened.close()
