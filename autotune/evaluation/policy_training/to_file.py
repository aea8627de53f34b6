"""Training on tasks from files and from an experience folder, and the file of the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from autotune.algorithms.experience.known_task import KnownTask
from autotune.algorithms.samplers.trained_policy import network
from autotune.errors import UserError
from autotune.evaluation.policy_training import learning, tables

VIEWS = 3
"""How often each task is there: with all parameters known by name, and with some under others."""


def train(
    tasks: Sequence[KnownTask],
    out: Path,
    seed: int,
    minutes: float | None,
    studies: int | None,
    say: Callable[[str], None],
) -> int:
    """Train a policy on studies of tasks, write its weights, and return how many were simulated.

    Args:
        tasks: what studies are simulated of.
        out: the file of the weights.
        seed: of everything that is drawn.
        minutes: of processor time that the training may take.
        studies: how many are simulated; with this the training is repeatable.
        say: takes a line on the progress.

    Raises:
        UserError: no task has enough trials, or the file cannot be written.
    """
    made = tables.tables(tasks, np.random.default_rng(seed), VIEWS)
    if not made:
        raise UserError(
            f"train-policy: none of {len(tasks)} tasks has {tables.LEAST_ROWS} trials and a "
            "parameter that varies"
        )
    began = time.process_time()
    simulated = 0

    def done(count: int) -> float:
        nonlocal simulated
        simulated = count
        spent = (time.process_time() - began) / (60 * minutes) if minutes else 0.0
        return max(spent, count / studies if studies else 0.0)

    say(f"training on {len(tasks)} tasks, in {len(made)} tables")
    weights = learning.train(made, seed, done, say=say)
    network.write(out, weights)
    return simulated
