"""A recipe that is submitted to a cluster: a trainer that counts to ten.

While there is a file `slow` beside its log it is slow and never gets there. Where it begins, from
scratch or from a checkpoint, is in the log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import autotune as at

STEPS = 10


def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
    step = config.get("state", {}).get("step", 0)
    with open(config["log"], "a") as log:
        log.write(f"{config['seed']} {step}\n")
    while True:
        slow = Path(config["log"]).with_name("slow").exists()
        reached = min(step, STEPS - 1) if slow else step
        yield at.Milestone(
            step,
            lambda now=reached: {"val_accuracy": now / STEPS},
            lambda now=step: {"step": now},
        )
        time.sleep(0.2 if slow else 0.02)
        step += 1


def placed(data: Path) -> at.Experiment:
    return study()


def study() -> at.Experiment:
    """Where it logs comes from the environment, as a job's `--env` sets it."""
    space = at.SearchSpace(
        {"speed": at.Float(0.1, 1.0), "log": at.Fixed(os.environ.get("JOB_RECIPE_LOG", ""))}
    )
    return at.Experiment(
        "submitted",
        train,
        space,
        at.Target("val_accuracy", 1.0, limit=600),
        scaling=at.Scaling(max_concurrent_trials=1),
        failure=at.FailurePolicy(checkpoint_interval=0),
    )


def no_data() -> at.Experiment:
    raise FileNotFoundError("the data is on the cluster")
