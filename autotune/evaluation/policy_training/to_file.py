"""Training on tasks from files and from an experience folder, and the file of the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path

import numpy as np

from autotune.algorithms.experience.known_task import KnownTask
from autotune.algorithms.samplers.trained_policy import network
from autotune.errors import UserError
from autotune.evaluation.policy_training import learning, stopping, tables

_FOR_PRUNER = 0.2  # of the minutes
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
        studies: how many are simulated for the sampler, and for the pruner a quarter as many;
            with this the training is repeatable.
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
    say(f"training on {len(tasks)} tasks, in {len(made)} tables")
    pruner = _Budget(minutes and minutes * _FOR_PRUNER, studies and ceil(studies / stopping.SHARE))
    weights = dict(stopping.train(made, seed, pruner.done, say))
    sampler = _Budget(minutes and minutes * (1 - _FOR_PRUNER), studies)
    weights |= learning.train(made, seed, sampler.done, say)
    network.write(out, weights)
    return pruner.simulated + sampler.simulated


class _Budget:
    """What a training may take: minutes of processor time, or studies."""

    def __init__(self, minutes: float | None, studies: int | None) -> None:
        self._minutes, self._studies = minutes, studies
        self._began = time.process_time()
        self.simulated = 0

    def done(self, simulated: int) -> float:
        """The share of it that is used after so many studies."""
        self.simulated = simulated
        spent = (time.process_time() - self._began) / (60 * self._minutes) if self._minutes else 0.0
        return max(spent, simulated / self._studies if self._studies else 0.0)
