"""Prediction of clicks with large tables of embeddings, in plain PyTorch.

The rows of the table are divided over the ranks, in the host's memory; the small dense part is on
every rank, and computes on its device. How updates reach the weights is `sparse_update`:
synchronous (`trainers.sparse.synchronous`), asynchronous with bounded staleness
(`trainers.sparse.asynchronous`), or on a copy of each rank, Geo-SGD and Hogwild
(`trainers.sparse.local`). The keys of its configuration are in `trainers.click_settings`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from autotune.trial import Change, Milestone
from trainers.auc import auc
from trainers.click_settings import EFFECTS, KEYS, MEMORY_KEYS, Settings, read_settings
from trainers.course import Course
from trainers.data import criteo
from trainers.data.clicks import Clickstream, InMemory, generate
from trainers.data.queues import Queues, Source
from trainers.knobs import Knobs
from trainers.models.clicks import MODELS, Batch
from trainers.parallel.ranks import Ranks, process_group
from trainers.sparse import weights
from trainers.sparse.asynchronous import Asynchronous
from trainers.sparse.exchange import Blocks, spread
from trainers.sparse.local import Local
from trainers.sparse.passes import Net, lookup
from trainers.sparse.protocol import Parts, Step, Update
from trainers.sparse.rules import DENSE, SPARSE, Rates
from trainers.sparse.synchronous import Synchronous

__all__ = ["KEYS", "Settings", "check", "read_settings", "train"]

EVALUATED = 4096  # samples of a rank in a forward pass of an evaluation


def train(config: dict[str, Any]) -> Generator[Milestone, Change | None, None]:
    """Train as `config` says until closed, or until `max_epochs`.

    A milestone comes every `milestone` samples of all ranks (an epoch), the first at the start. The
    ranks agree there: what is under way is waited for, and copies are exchanged. A `Change` is of
    both learning rates, of the batch size, and of the first beta.

    `evaluate` gives val_auc, exact, and val_loss (the mean log loss in nats); lr, lr_sparse,
    batch_size, progress now; and, once trained, train_loss, samples_per_second, staleness_mean and
    staleness_max (steps: `trainers.sparse`) since the last milestone.

    Raises:
        ValueError: a key or value that is not allowed, a process group without gloo, or a line of a
            file that is not of the format, with its file and number; one line.
        FileNotFoundError: missing files; one line that says where to put them.
    """
    settings = read_settings(config)
    with process_group() as ranks:
        loop = Loop(settings, ranks)
        try:
            yield from loop.milestones()
        finally:
            loop.close()


def check(config: Mapping[str, Any]) -> None:
    """Raise a ValueError, one line, for a configuration that cannot be trained.

    As `read_settings`; and files to train on must be there.
    """
    settings = read_settings(config)
    if settings.data_dir is not None:
        for part in ("train", "val"):
            criteo.files_of(settings.data_dir, part)


train.check = check  # type: ignore[attr-defined]  # called before a study starts
train.effects = EFFECTS  # type: ignore[attr-defined]  # what each key changes of a training
train.memory_keys = MEMORY_KEYS  # type: ignore[attr-defined]  # what determines a step's memory


class Loop:
    """One training: its data, weights, knobs and progress."""

    def __init__(self, settings: Settings, ranks: Ranks) -> None:
        training = settings.training
        state = training.state or {"seen": 0}
        self._settings, self._ranks = settings, ranks
        _require_gloo(ranks)
        self._seen: int = state["seen"]
        self._knobs = Knobs(training, ranks.size, state)
        self._sparse = Knobs(settings.sparse, ranks.size, state)
        with ExitStack() as opened:  # closed if what follows raises
            self._stream = _stream(settings, ranks, state)
            opened.callback(self._stream.close)
            self._parts = _parts(settings, self._stream, ranks)
            if training.state:
                found = self._parts
                weights.restore(state, found.table, found.dense, found.blocks, ranks.rank)
            self._update = _update(settings, self._parts)
            opened.callback(self._update.close)
            self._factor = spread(self._stream.rows)
            self._course = Course.of(training, self._stream.train_size)
            self._trained, self._seconds = 0, 0.0
            self._warm_up()
            self._opened = opened.pop_all()

    def _warm_up(self) -> None:
        """One forward and backward pass before the clock starts, which changes nothing."""
        low, high = self._ranks.share(0, self._knobs.batch_size(self._progress))
        batch = self._placed(self._stream.validation.part(slice(0, high - low)))
        known, parts = lookup(batch), self._parts
        rows = torch.zeros((len(known.rows), parts.table.weight.shape[1]))
        parts.net.gradient(rows, parts.dense.weight, batch, known.index, len(batch))

    def milestones(self) -> Generator[Milestone, Change | None, None]:
        change = yield self._milestone(0.0)
        while self._seen < self._course.end:
            if change is not None:
                self._knobs.change(change)
                self._sparse.change(change)
            waited = self._stream.waited
            self._train_until(self._course.next(self._seen))
            change = yield self._milestone(self._stream.waited - waited)

    def _train_until(self, target: float) -> None:
        begun, first = time.perf_counter(), self._seen
        self._update.begin()
        while self._seen < target:
            progress = self._progress
            batch_size = self._knobs.batch_size(progress)
            batch = self._placed(self._stream.take(self._seen, batch_size))
            rates = (self._rates(knobs, progress) for knobs in (self._sparse, self._knobs))
            self._update.step(Step(batch, batch_size, *rates))
            self._seen += batch_size
        self._update.settle()
        self._trained, self._seconds = self._seen - first, time.perf_counter() - begun

    @property
    def _progress(self) -> float:
        return self._course.progress(self._seen)

    def _rates(self, knobs: Knobs, progress: float) -> Rates:
        beta2 = self._settings.training.options.get("beta2")
        if beta2 is None:
            return Rates(knobs.lr(progress))
        return Rates(knobs.lr(progress), knobs.momentum(progress), beta2(progress))

    def _placed(self, batch: Batch) -> Batch:
        """The batch with the places of its rows in the table."""
        places = batch.categories * self._factor % self._stream.rows
        return Batch(places, batch.dense, batch.clicks)

    def _milestone(self, data_seconds: float) -> Milestone:
        return Milestone(self._seen, self._evaluate, self._state, data_seconds)

    def _evaluate(self) -> dict[str, float]:
        val, ranks = self._stream.validation, self._ranks
        logits = torch.zeros(len(val))
        passes = -(-len(val) // (EVALUATED * ranks.size))  # as many on every rank
        start, stop = ranks.share(0, len(val))
        for number in range(passes):
            low, high = (start + (stop - start) * n // passes for n in (number, number + 1))
            batch = self._placed(val.part(slice(low, high)))
            known = lookup(batch)
            rows = self._update.weights(known.rows)
            found = self._parts.net.logits(rows, self._parts.dense.weight, batch, known.index)
            logits[low:high] = found
        ranks.sum(logits)
        loss = F.binary_cross_entropy_with_logits(logits, val.clicks).item()
        return {"val_auc": auc(logits, val.clicks), "val_loss": loss, **self._measured()}

    def _measured(self) -> dict[str, float]:
        """What is known of the training without a validation."""
        progress, seen = self._progress, self._update.seen
        metrics = {
            "lr": self._knobs.lr(progress),
            "lr_sparse": self._sparse.lr(progress),
            "batch_size": float(self._knobs.batch_size(progress)),
            "progress": self._seen / self._course.horizon,
        }
        if self._settings.training.options:
            metrics["momentum"] = self._knobs.momentum(progress)
        if self._trained:
            total = seen.over(self._ranks)
            metrics["train_loss"] = total.loss / self._trained
            metrics["samples_per_second"] = self._trained / self._seconds
            metrics["staleness_mean"] = total.total / total.steps
            metrics["staleness_max"] = float(total.most)
        return metrics

    def _state(self) -> dict[str, Any]:
        parts = self._parts
        table = self._update.own()
        return {
            "seen": self._seen,
            **self._knobs.state(),
            **weights.saved(table, parts.dense, parts.blocks, self._ranks),
            **self._stream.state(),
        }

    def close(self) -> None:
        """End the threads of readers and workers."""
        self._opened.close()


def _require_gloo(ranks: Ranks) -> None:
    """Raise a ValueError, one line, where ranks cannot send what is in the host's memory."""
    if ranks.size > 1 and "gloo" not in dist.get_backend_config(ranks.group):
        found = dist.get_backend(ranks.group)
        raise ValueError(
            f"the process group must have gloo, as 'cpu:gloo,cuda:nccl', got {found!r}"
        )


def _stream(settings: Settings, ranks: Ranks, state: Mapping[str, Any]) -> Clickstream:
    seed, size = settings.training.seed, settings.hash_size
    if settings.data_dir is None:
        assert settings.train_size is not None
        assert settings.val_size is not None
        made = generate(settings.train_size, settings.val_size, size)
        rows = size * made.train.categories.shape[1]
        return InMemory(made.train, made.val, rows, seed, ranks)
    files = criteo.files_of(settings.data_dir, "train")
    val = criteo.read(criteo.files_of(settings.data_dir, "val"), settings.val_size, size)
    source = Source((), (), size, seed, settings.reader_threads, settings.shuffle_buffer)
    return Queues(files, source, val, ranks, (state["seen"], state.get("taken", ())))


def _parts(settings: Settings, stream: Clickstream, ranks: Ranks) -> Parts:
    """The weights before training."""
    seed, model = settings.training.seed, MODELS[settings.model]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        made = model(stream.features, stream.numbers, settings.width, settings.hidden)
    net = Net(made, ranks.device, settings.training.microbatch)
    blocks = Blocks(stream.rows, ranks.size)
    table = weights.begun(blocks, made.columns, seed, ranks.rank)
    sparse, dense = SPARSE[settings.optimizer_sparse], DENSE[settings.optimizer]
    return Parts(net, sparse.begun(table), dense.begun(net.first), blocks, sparse, dense, ranks)


def _update(settings: Settings, parts: Parts) -> Update:
    match settings.sparse_update:
        case "synchronous":
            return Synchronous(parts)
        case "asynchronous":
            return Asynchronous(parts, settings.staleness_bound)
        case "geo_sgd":
            return Local(parts, settings.push_every, 1)
        case _:
            return Local(parts, settings.push_every, settings.hogwild_workers)
