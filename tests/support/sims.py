"""Simulated experiments, whose every number is known beforehand."""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.space.search_space import Choice, Fixed, Float, Int, ScheduleSpace, SearchSpace
from autotune.storage.journal import JOURNAL

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: there, flushing a line to disk costs nothing."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


METRIC = "val_accuracy"
WIDE = SearchSpace(
    {
        "lr": ScheduleSpace(
            Float(1e-4, 10, log=True), family=Choice(["cosine", "linear"]), warmup=Float(0, 0.1)
        ),
        "batch_size": Int(16, 256, power_of_two=True),
        "layers": Int(1, 9, step=3),
        "optimizer": Choice(["sgd", "lars"]),
        "trust": Float(1e-4, 1e-1, log=True, when={"optimizer": "lars"}),
        "epochs": Fixed(4),
    }
)
EVERYTHING = SearchSpace(
    {
        "optimizer": Choice(("sgd", "lars", None)),
        "trust": Float(1e-4, 1e-1, log=True, when={"optimizer": "lars"}),
        "batch": Int(16, 256, power_of_two=True),
        "layers": Int(1, 9, step=3),
        "units": Int(1, 1000, log=True),
        "lr": ScheduleSpace(
            Float(0.01, 1, log=True),
            family=Choice(("cosine", "piecewise", "staircase")),
            final=Float(0.01, 0.5),
            knots=Int(1, 3),
        ),
        "momentum": Float(0.5, 0.99),
    }
)
"""Every kind of parameter that a space can have."""

BASELINE = {
    "lr.family": "cosine",
    "lr.peak": 0.01,
    "lr.warmup": 0.05,
    "batch_size": 64,
    "layers": 4,
    "optimizer": "sgd",
}


def learning(config: Mapping[str, Any], seed: int) -> SimCurve:
    """Learns fastest with a learning rate near 0.1, and jitters with the seed."""
    lr, batch = config["lr"](0.2), config["batch_size"]
    speed = math.exp(-((math.log10(lr) + 1) ** 2)) * (1 + 0.1 * math.sin(seed))
    return SimCurve(
        [
            SimPoint(
                i * 1000,
                i * 0.1 * (1 + 10 / batch),
                {METRIC: 1 - math.exp(-speed * i * 0.15), "train_loss": 1 / (i + 1)},
            )
            for i in range(61)
        ]
    )


def wide(**options: Any) -> at.Experiment:
    """The search over `WIDE` with a baseline."""
    target = at.Target(METRIC, 0.9, limit=5)
    return at.Experiment("wide", toy_train, WIDE, target, baseline=BASELINE, **options)


def toy_train(config: dict[str, Any]) -> Any:
    """Stands for a trainer where none is run."""


RATES = SearchSpace({"rate": Float(0.01, 100, log=True)})


def racing(rates: Sequence[float], *, limit: float = 50, **options: Any) -> at.Experiment:
    """Trials of given rates, the first the baseline; rate r is at r * t / 10 after t seconds."""
    given = [{"rate": r} for r in rates]
    target = options.pop("target", None) or at.Target(METRIC, 1.0, limit=limit)
    space = options.pop("space", RATES)
    return at.Experiment(
        "racing", toy_train, space, target, baseline=given[0], configs=given[1:], **options
    )


def race(config: Mapping[str, Any], seed: int, **curve: Any) -> SimCurve:
    """One milestone a second for 100 seconds."""
    points = [SimPoint(10 * t, float(t), {METRIC: config["rate"] * t / 10}) for t in range(101)]
    return SimCurve(points, **curve)


def simulate(
    experiment: at.Experiment,
    folder: Path,
    trials: int,
    curve: Callable[..., SimCurve] = race,
    *,
    workers: int = 1,
    **options: Any,
) -> at.StudyResult:
    """Run the study on a virtual clock; without races, so that every trial is known beforehand."""
    pool = options.pop("pool", None) or SimPool(curve, workers)
    usual = {"sampler": "random", "pruner": "slower_than_best", "tracking_uri": "off"}
    options = {**usual, "racing": 0, **options}
    return at.run(experiment, trials=trials, out=folder, pool=pool, **options)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The journal's lines without the time at which they were written."""
    rows = [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]
    for row in rows:
        del row["time"]
    return rows


class RealTime(SimPool):
    """A simulated pool whose seconds are hundredths of real ones."""

    realtime: bool = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.realtime = True
        self._woken = threading.Event()

    def wake(self) -> None:
        self._woken.set()

    def wait(self, timeout: float | None) -> Any:
        if self._agenda:
            time.sleep(max(self._agenda[0][0] - self._now, 0) / 100)
            return super().wait(timeout)
        self._woken.wait(5)
        self._woken.clear()
        return None
