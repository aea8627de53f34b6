"""Distributed data-parallel training of an image classifier in plain PyTorch.

It runs alone, `for milestone in train(config): print(milestone.step, milestone.evaluate())`, under
`torchrun`, or inside a process group that someone else has opened. The keys of `config` are in
`trainers.settings`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import Any

import torch

from autotune.trial import Change, Milestone
from trainers.data import read_images, synthetic
from trainers.distributed import Ranks, process_group
from trainers.folder import FolderStream
from trainers.knobs import Knobs
from trainers.learner import Learner
from trainers.models import make_model
from trainers.settings import Settings, read_settings
from trainers.stream import MemoryStream, Stream

EVALUATED = 512  # samples in a forward pass of an evaluation


def train(config: dict[str, Any]) -> Generator[Milestone, Change | None, None]:
    """Train as `config` says until closed, or until `max_epochs`.

    The first milestone, at the starting step, ends the set-up (data, model, compilation, a warm-up
    that leaves no trace); the next ones follow every `milestone` samples. A `Change` that is sent
    in holds from then on: `lr_factor` multiplies the learning rate (and earlier factors),
    `batch_size` and `momentum` replace their schedules.

    `evaluate` gives val_accuracy, val_loss, lr, momentum and batch_size now and, once trained,
    train_loss and samples_per_second since the last milestone. `state` restores bit for bit on as
    many ranks (on a GPU as far as its kernels are deterministic). What comes next depends on the
    seed and the samples seen only, so no random state is kept.

    Raises:
        ValueError: a key or value that is not allowed, in one line.
        FileNotFoundError: data that is missing, with its place.
    """
    settings = read_settings(config)
    with process_group() as ranks:
        run = _Run(settings, ranks)
        try:
            yield from run.milestones()
        finally:
            run.close()


class _Run:
    """One training: its data, its learner, its knobs, and how far it is."""

    def __init__(self, settings: Settings, ranks: Ranks) -> None:
        state = settings.state or {"seen": 0}
        self._settings = settings
        self._ranks = ranks
        self._seen: int = state["seen"]
        self._knobs = Knobs(settings, ranks.size, state)
        self._stream = self._open_stream()
        size = self._stream.train_size
        self._horizon = settings.horizon * size
        self._every = settings.milestone or size
        self._end = math.inf if settings.max_epochs is None else settings.max_epochs * size
        self._trained = 0
        self._seconds = 0.0
        self._learner = self._make_learner()
        self._learner.warm_up(self._stream.shape, self._batch_size_at(self._seen))
        if settings.state:
            self._learner.restore(state["learner"])

    def _open_stream(self) -> Stream:
        settings, device = self._settings, self._ranks.device
        if settings.data == "folder":
            return FolderStream(settings, self._ranks, self._batch_size_at)
        if settings.data == "synthetic":
            train, val = settings.train_size or 4096, settings.val_size or 1024
            images = synthetic(train, val, settings.image_size or 32, device)
        else:
            images = read_images(settings.data, settings.data_dir, device)
            images = images.first(settings.train_size, settings.val_size)
        return MemoryStream(images, settings.augment, settings.seed, self._ranks)

    def _make_learner(self) -> Learner:
        settings, stream = self._settings, self._stream
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)
            model = make_model(
                settings.model, stream.shape, stream.classes, settings.width, settings.norm
            )
        model = model.to(self._ranks.device)
        if settings.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if settings.compile:
            model.compile()
        return Learner(model, self._ranks, settings)

    def milestones(self) -> Generator[Milestone, Change | None, None]:
        change = yield self._milestone(0.0)
        while self._seen < self._end:
            if change is not None:
                self._knobs.change(change)
            waited = self._stream.waited
            self._train_until(min((self._seen // self._every + 1) * self._every, self._end))
            change = yield self._milestone(self._stream.waited - waited)

    def _train_until(self, target: float) -> None:
        """Train until `target` samples are seen; waits for the device at the end only."""
        knobs, stream, learner = self._knobs, self._stream, self._learner
        learner.loss.zero_()
        begun, first = time.perf_counter(), self._seen
        while self._seen < target:
            progress = self._progress(self._seen)
            batch_size = knobs.batch_size(progress)
            knobs.turn(learner.optimizer, progress)
            batch = stream.take(self._seen, batch_size)
            learner.step(batch, batch_size, knobs.smoothing(progress))
            self._seen += batch_size
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize(self._ranks.device)
        self._trained, self._seconds = self._seen - first, time.perf_counter() - begun

    def _progress(self, seen: int) -> float:
        return min(seen / self._horizon, 1.0)

    def _batch_size_at(self, seen: int) -> int:
        return self._knobs.batch_size(self._progress(seen))

    def _milestone(self, data_seconds: float) -> Milestone:
        return Milestone(self._seen, self._evaluate, self._state, data_seconds)

    def _evaluate(self) -> dict[str, float]:
        right, loss, count, trained = self._learner.evaluate(self._stream.validation(EVALUATED))
        progress = self._progress(self._seen)
        metrics = {
            "val_accuracy": right / count,
            "val_loss": loss / count,
            "lr": self._knobs.lr(progress),
            "momentum": self._knobs.momentum(progress),
            "batch_size": float(self._knobs.batch_size(progress)),
        }
        if self._trained:
            metrics["train_loss"] = trained / self._trained
            metrics["samples_per_second"] = self._trained / self._seconds
        return metrics

    def _state(self) -> dict[str, Any]:
        return {"seen": self._seen, **self._knobs.state(), "learner": self._learner.state()}

    def close(self) -> None:
        """Free the model, DDP's hooks and the loader's processes."""
        self._stream.close()
        self._learner.close()
