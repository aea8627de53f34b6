"""A study of real trainings that begin alike, on this machine: `shared_study.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import autotune as at
from autotune.backends.local.pool import LocalPool
from autotune.space.search_space import Choice, Fixed, Float, ScheduleSpace, SearchSpace
from trainers.image import train

EPOCH = 640  # samples from one milestone to the next
LAST = 20 * EPOCH
FIXED: dict[str, Any] = {"data": "digits", "model": "mlp", "width": 32, "milestone": EPOCH}
FIXED |= {"optimizer": "sgd", "batch_size": 64, "horizon": 10.0, "label_smoothing": 0.0}
SPACE = SearchSpace(
    {
        **{key: Fixed(value) for key, value in FIXED.items()},
        "momentum": Choice((0.8, 0.9)),
        "lr": ScheduleSpace(
            0.2, family="wsd", final=Float(0.0, 0.1), warmup=0.1, decay=Float(0.1, 0.5)
        ),
    }
)


def experiment(workers: int = 1) -> at.Experiment:
    return at.Experiment(
        "shared",
        train,
        SPACE,
        at.Target("val_accuracy", limit_steps=LAST),
        scaling=at.Scaling(num_workers=workers, max_concurrent_trials=1),
        failure=at.FailurePolicy(keep_checkpoints=20),
    )


def run(folder: Path, pool: LocalPool | None = None) -> at.StudyResult:
    options: dict[str, Any] = {"pruner": "none", "sampler": "random", "tracking_uri": "off"}
    options |= {"shared_beginnings": "auto", "progress": False}
    options |= {"backend": "local"} if pool is None else {"pool": pool}
    workers = 1 if pool is None else pool.scaling.num_workers
    return at.run(experiment(workers), trials=6, out=folder, racing=0, **options)


if __name__ == "__main__":
    print(run(Path(sys.argv[1])).ended)
