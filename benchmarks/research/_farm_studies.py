"""Studies of the farm's small networks with random configurations, for experience.

Each task has one with SGD and LARS, over the farm's own space, and one with AdamW. A task on
Fashion-MNIST, shrunk to 14x14, is added where the data is there.
"""

from __future__ import annotations

import gzip
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _adaptive import VECTORS, adamw
from _networks import Farm, Plan
from _recorded import Curves, Study
from _signals import Data
from farm import METRIC, Task, step_seconds, tasks

import autotune as at
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import MARKS
from autotune.trial import Params

BATCH = 64  # networks in training at a time
_READINGS = 24  # even ones, besides those at the marks
_TRAIN, _CHECK = 4000, 1000
FASHION = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")


@dataclass(frozen=True)
class FarmStudy:
    """A task of the farm with one of its optimizers.

    Args:
        task: networks, data and limit.
        data: what it trains on.
        adaptive: AdamW instead of SGD and LARS.
    """

    task: Task
    data: Data
    adaptive: bool

    @property
    def study(self) -> Study:
        """What is equal for all of its trials."""
        problem = f"farm-{self.task.name}"
        return Study(
            f"{problem}-adamw" if self.adaptive else problem,
            "benchmarks.research.farm",
            METRIC,
            "max",
            self.task.limit,
            hardware="virtual seconds of the farm",
            problem=problem,
        )

    def space(self) -> at.SearchSpace:
        """What is searched; the horizon is a share of the limit."""
        if not self.adaptive:
            return self.task.space()
        own = self.task.space().entries
        rate = own["lr"]
        assert isinstance(rate, at.ScheduleSpace)
        rate = replace(rate, peak=at.Float(1e-4, 0.1, log=True))
        return at.SearchSpace(
            {
                "lr": rate,
                "momentum": at.Float(0.8, 0.98),
                "beta2": at.Float(0.9, 0.9999),
                "weight_decay": at.Float(1e-5, 1.0, log=True),
                "horizon": own["horizon"],
                "batch_size": own["batch_size"],
                "optimizer": at.Fixed("adamw"),
            }
        )

    def point(self, params: Params) -> dict[str, Any]:
        """The canonical point, with the horizon in epochs: a share of the limit is no other's."""
        steps = params["horizon"] * self.task.limit / step_seconds(params["batch_size"])
        epochs = steps * params["batch_size"] / len(self.data.targets)
        point = CanonicalSpace(self.space()).point(params)
        del point["horizon"]
        return {**point, "epochs": epochs}

    def plan(self, params: Params) -> Plan:
        """How a point is trained, with readings just before the marks and evenly between."""
        config = self.space().config(params)
        plan = self.task.plan({"trust": 0.0, **config})
        shares = {*MARKS.tolist(), *((i + 1) / _READINGS for i in range(_READINGS))}
        steps = self.task.limit / step_seconds(plan.batch)
        stops = sorted({max(math.floor(share * steps + 1e-9), 1) for share in shares})
        return replace(plan, stops=stops, beta2=config.get("beta2", 0.0))

    def extend(self, curves: Curves, count: int, seed: int) -> None:
        """Train up to `count` further points, those that the seed has next."""
        begin, first = time.process_time(), len(curves.points)
        params = self.space().sample(first + count, seed=seed)[first:]
        own = sorted(zip(params, range(first, first + count), strict=True), key=_by_batch)
        rule = (adamw, VECTORS) if self.adaptive else ()
        farm = Farm(self.data, self.task.widths, *rule)
        networks = [farm.plant(self.plan(p), seed + number) for p, number in own]
        readings: dict[int, list[float]] = {number: [] for _, number in own}
        for i in range(max(len(n.plan.stops) for n in networks)):
            for (_, number), network in zip(own, networks, strict=True):
                if i < len(network.plan.stops):
                    readings[number].append(farm.measured(network, i)[0])
        for (p, number), network in sorted(zip(own, networks, strict=True), key=lambda x: x[0][1]):
            each = step_seconds(p["batch_size"])
            seconds = [stop * each for stop in network.plan.stops]
            curves.add(self.point(p), seconds, readings[number])
        curves.cpu += time.process_time() - begin


def studies(folder: Path) -> Iterator[FarmStudy]:
    """All studies; those on Fashion-MNIST where the folder has its files."""
    known = [(task, task._load()) for task in tasks()]
    files = [folder / "fashion_mnist" / name for name in FASHION]
    if all(file.exists() for file in files):
        task = Task("fashion-mnist", "fashion_mnist", _TRAIN, 0.0, 0, (32,))
        known.append((task, fashion(*files)))
    for task, data in known:
        yield FarmStudy(task, data, adaptive=False)
        yield FarmStudy(task, data, adaptive=True)


def fashion(images: Path, labels: Path) -> Data:
    """Fashion-MNIST's first images, each 14x14: the means of two by two."""
    count = _TRAIN + _CHECK
    raw = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16)
    whole = raw.reshape(-1, 28, 28)[:count].astype(np.float32)
    small = whole.reshape(count, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(count, 1, -1)
    small = torch.from_numpy((small - small[:_TRAIN].mean()) / small[:_TRAIN].std())
    raw = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
    classes = torch.from_numpy(raw[:count].astype(np.int64))
    return Data(small[:_TRAIN], classes[:_TRAIN], small[_TRAIN:], classes[_TRAIN:])


def _by_batch(one: tuple[Params, int]) -> int:
    """Networks of equal batches train side by side: they make equally many steps."""
    return int(one[0]["batch_size"])
