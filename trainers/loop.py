"""The training loop of all trainers: progress, knobs, milestones, checkpoints, warm-up."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from autotune import schedules
from autotune.schedules import edges_of
from autotune.trial import Change, Milestone
from trainers.distributed import Ranks
from trainers.knobs import Knobs, fast, is_constant
from trainers.learner import Learner
from trainers.precision import numerics
from trainers.readers import Schedule
from trainers.stream import Batch, Stream, passes
from trainers.training import Training

S = TypeVar("S", bound=Stream)
StepAt = Callable[[int], tuple[int, int]]
MOST_WARMED = 16
GRID = tuple(i / 1000 for i in range(1001))


@dataclass(frozen=True)
class Task(Generic[S]):
    """The parts of one kind of training: its data, its model, and its scheduled size.

    Args:
        size_key: the key and the metric of an item's size.
        size: that size, a schedule; rounded to a whole number at every step.
        samples: samples in an item of a given size: 1 image, or the tokens of a sequence.
        stream: opens the data; its argument gives batch size and size of the step after a number of
            samples, and may be called once training has started.
        model: builds the model for a stream, on the host, with torch's global generator.
        layout: memory format of the model's input.
        dims: of the input of a model that have the item's size.
        flops: of training per sample, for a model and an item's size; None: not reported.
        units: the modules that are sharded over the ranks one by one; None: no sharding.
    """

    size_key: str
    size: Schedule
    samples: Callable[[int], int]
    stream: Callable[[StepAt], S]
    model: Callable[[S], nn.Module]
    layout: torch.memory_format = torch.contiguous_format
    dims: tuple[int, ...] = ()
    flops: Callable[[Any, int], float] | None = None
    units: Callable[[Any], Sequence[nn.Module]] | None = None


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
        self._training = training
        self._ranks = ranks
        self._task = task
        self._size = fast(task.size)
        self._seen: int = state["seen"]
        self._knobs = Knobs(training, ranks.size, state)
        with ExitStack() as opened:  # closed if what follows raises
            self._stream = task.stream(self._step_at)
            opened.callback(self._stream.close)
            self._plan()
            self._learner = self._make_learner()
            opened.callback(self._learner.close)
            self._learner.warm_up(self._warmed(), self._evaluated())
            if training.state:
                self._learner.restore(state["learner"])
            self._opened = opened.pop_all()

    def _plan(self) -> None:
        """Horizon, milestones and end in samples, and what is counted between milestones."""
        training, epoch = self._training, self._stream.train_size
        self._horizon = training.horizon * epoch
        self._every = training.milestone or epoch
        self._end = math.inf if training.max_epochs is None else training.max_epochs * epoch
        self._trained = 0
        self._flops = 0.0
        self._seconds = 0.0

    def _make_learner(self) -> Learner:
        training, task = self._training, self._task
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(training.seed)
            model = task.model(self._stream)
        model = model.to(self._ranks.device)
        model = model.to(memory_format=task.layout)  # type: ignore[call-overload]
        if training.compile:
            model.compile()
        units = None if task.units is None else task.units(model)
        varying: tuple[int, ...] = () if is_constant(training.batch_size) else (0,)
        varying += () if is_constant(task.size) else task.dims
        return Learner(model, self._ranks, training, task.layout, units, varying)

    def milestones(self) -> Generator[Milestone, Change | None, None]:
        change = yield self._milestone(0.0)
        while self._seen < self._end:
            if change is not None:
                self._knobs.change(change)
            waited = self._stream.waited
            self._train_until(min((self._seen // self._every + 1) * self._every, self._end))
            change = yield self._milestone(self._stream.waited - waited)

    def _train_until(self, target: float) -> None:
        """Train until `target` samples are seen; synchronise with the device at the end only."""
        knobs, stream, learner, task = self._knobs, self._stream, self._learner, self._task
        learner.loss.zero_()
        learner.statistics.clear()
        seen_by_size: Counter[int] = Counter()
        begun, first = time.perf_counter(), self._seen
        knobs.set(learner.optimizer, self._progress(self._seen))
        while self._seen < target:
            progress = self._progress(self._seen)
            batch_size, size = knobs.batch_size(progress), round(self._size(progress))
            knobs.turn(learner.optimizer, progress)
            samples = batch_size * task.samples(size)
            batch = stream.take(self._seen, batch_size, size)
            learner.statistics.next(last=self._seen + samples >= target)
            learner.step(batch, samples, knobs.smoothing(progress))
            self._seen += samples
            seen_by_size[size] += samples
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize(self._ranks.device)
        self._trained, self._seconds = self._seen - first, time.perf_counter() - begun
        if task.flops is not None:
            of_model = ((task.flops(learner.model, k), v) for k, v in seen_by_size.items())
            self._flops = sum(flops * samples for flops, samples in of_model)

    def _progress(self, seen: float) -> float:
        return min(seen / self._horizon, 1.0)

    def _step_at(self, seen: int) -> tuple[int, int]:
        return self._planned(self._progress(seen))

    def _planned(self, progress: float) -> tuple[int, int]:
        """Batch size and size of the step at `progress`."""
        return self._knobs.batch_size(progress), round(self._size(progress))

    def _milestone(self, data_seconds: float) -> Milestone:
        return Milestone(self._seen, self._evaluate, self._state, data_seconds)

    def _evaluate(self) -> dict[str, float]:
        right, loss, count, trained = self._learner.evaluate(self._stream.validation())
        progress = self._progress(self._seen)
        batch_size, size = self._planned(progress)
        metrics = {
            "val_accuracy": right / count,
            "val_loss": loss / count,
            "lr": self._knobs.lr(progress),
            "momentum": self._knobs.momentum(progress),
            "batch_size": float(batch_size),
            self._task.size_key: float(size),
            "progress": self._seen / self._horizon,
        }
        if self._trained:
            metrics |= self._learner.statistics.metrics()
            if self._learner.limit_met:
                metrics["recompile_limit_met"] = 1.0
            metrics["train_loss"] = trained / self._trained
            metrics["samples_per_second"] = self._trained / self._seconds
            if self._task.flops is not None:
                metrics["flops_per_second"] = self._flops / self._seconds
        return metrics

    def _state(self) -> dict[str, Any]:
        return {"seen": self._seen, **self._knobs.state(), "learner": self._learner.state()}

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
        start, stop = self._ranks.share(0, batch_size)
        return stop - start

    def _warmed(self) -> Iterator[tuple[Batch, int]]:
        """Batches of all shapes of the remaining training, or of the most important ones.

        With the samples of the global batch. All ranks get the same number of forward passes.
        """
        now, end = self._progress(self._seen), self._progress(self._end)
        steps = [self._planned(at) for at in self._sampled_progresses(now, max(now, end))]
        for batch_size, size in warmed_up(steps, self._ranks.size, self._training.microbatch):
            local = self._local(batch_size)
            if self._task.units is not None:  # all ranks make the same passes
                local = -(-batch_size // self._ranks.size)
            count = sum(passes(local, self._training.microbatch))
            x, y = self._stream.warm(self._seen, batch_size, size)
            yield (x[:count], y[:count]), count * self._ranks.size * self._task.samples(size)

    def _sampled_progresses(self, now: float, end: float) -> list[float]:
        """Progresses that cover every shape from now to the end: a regular grid and all edges."""
        scheduled = (self._training.batch_size, self._task.size)
        if all(map(is_constant, scheduled)):
            return [now]
        ours = (s for s in scheduled if isinstance(s, schedules.Schedule))
        edges = (edge for schedule in ours for edge in edges_of(schedule))
        return [now, *sorted(x for x in (*edges, *GRID) if now < x <= end)]

    def close(self) -> None:
        """Free the model, DDP's hooks and the stream's processes."""
        self._opened.close()


def warmed_up(
    steps: Sequence[tuple[int, int]], ranks: int, microbatch: int | None
) -> list[tuple[int, int]]:
    """One step (batch size, size) of each kind in `steps`, the largest first.

    With more than 16 kinds, those of the first, the last and the most frequent step. The largest
    has the most pixels or tokens in a forward pass.

    >>> warmed_up([(32, 8), (33, 8), (32, 4), (32, 8)], 2, None)
    [(33, 8), (32, 8), (32, 4)]
    >>> warmed_up([(32, 8), (48, 8), (80, 8), (40, 8)], 1, 16)
    [(40, 8), (32, 8)]
    """
    kinds = [_kind(step, ranks, microbatch) for step in steps]
    found = dict(zip(reversed(kinds), reversed(steps), strict=True))  # the first of each kind
    if len(found) > MOST_WARMED:
        often = Counter(kinds).most_common(1)[0][0]
        found = {kind: found[kind] for kind in (kinds[0], often, kinds[-1])}
    largest = sorted(found, key=lambda kind: (kind.size * kind.most[0], found[kind]), reverse=True)
    return [found[kind] for kind in largest]


class Kind(NamedTuple):
    """Steps of one kind: forward passes of the same shapes, on ranks of the least and most items.

    It has the shapes of all ranks, so that all choose the same steps for the warm-up.
    """

    size: int
    least: tuple[int, ...]
    most: tuple[int, ...]


def _kind(step: tuple[int, int], ranks: int, microbatch: int | None) -> Kind:
    batch_size, size = step
    least, most = (passes(n, microbatch) for n in (batch_size // ranks, -(-batch_size // ranks)))
    return Kind(size, least, most)
