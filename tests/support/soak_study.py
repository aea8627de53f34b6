"""The study of the soak test: its trainer, and a driver of it that is there to be killed.

`soak_study.py FOLDER ADDRESS TRIALS`.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import toys

import autotune as at
from autotune.algorithms.pruners.rules import slower_than_best

STEP = 100
LUCK = ((0.02, "raise"), (0.04, "nan"), (0.05, "exit"), (0.06, "leave"), (0.075, "thread"))


def fault(luck: float) -> str:
    """What goes wrong in a trial of this luck, if anything."""
    return next((what for below, what in LUCK if luck < below), "")


def curve(rate: float, step: int) -> float:
    """The metric at a step: it is above the target sooner or later, or never."""
    return 1.0 - math.exp(-rate * step / 1000)


def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Adds up its steps on all ranks, and goes wrong at step 500 as its luck wants it."""
    state = config.get("state") or {"step": 0, "summed": torch.zeros(1, dtype=torch.float64)}
    step, summed, wrong = state["step"], state["summed"], fault(config["luck"])
    toys.note(config, f"start {step}")

    def found() -> dict[str, float]:
        loss = math.nan if wrong == "nan" and step >= 500 else 1.0 / (1 + step)
        return {
            toys.METRIC: curve(config["rate"], step),
            "train_loss": loss,
            "summed": float(summed),
            "pid": os.getpid(),
        }

    def saved() -> dict[str, Any]:
        return {"step": step, "summed": summed}

    yield at.Milestone(step, dict, saved)
    while step < 3000:
        time.sleep(config["nap"])
        step += STEP
        if step == 500:
            go_wrong(wrong)
        one = torch.ones(1, dtype=torch.float64)
        dist.all_reduce(one)
        summed = summed + one / dist.get_world_size() * STEP
        yield at.Milestone(step, found, saved)


def go_wrong(wrong: str) -> None:
    if wrong == "raise":
        raise RuntimeError("bad luck")
    if wrong == "exit":
        sys.exit(3)
    if wrong == "leave":
        os._exit(4)
    if wrong == "thread":
        threading.Thread(target=time.sleep, args=(3600,), name="left", daemon=True).start()


def experiment(folder: Path) -> at.Experiment:
    space = at.SearchSpace(
        {
            "rate": at.Float(0.3, 6.0, log=True),
            "luck": at.Float(0.0, 1.0),
            "nap": at.Fixed(0.004),
            "log": at.Fixed(str(folder.parent / "log")),
        },
        constraints=(at.Constraint("luck below 0.98", lambda c: c["luck"] < 0.98),),
    )
    return at.Experiment(
        "soaked",
        train,
        space,
        at.Target(toys.METRIC, 0.9, limit=600),
        baseline={"rate": 1.5, "luck": 0.5},
        failure=at.FailurePolicy(
            hang_timeout=900,
            max_retries=3,
            max_consecutive_failed_trials=30,
            checkpoint_interval=0.02,
        ),
        scaling=at.Scaling(max_concurrent_trials=2),
    )


def main(folder: Path, address: str, trials: int) -> None:
    result = at.run(
        experiment(folder),
        trials=trials,
        out=folder,
        sampler="random",
        pruner=slower_than_best(3.0),
        ray_address=address or None,
        seed=5,
    )
    print(result.ended)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
