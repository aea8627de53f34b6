"""Studies of one problem with different optimizers as one known task.

A study of one optimizer says nothing about another one. Studies that trained the same model on the
same data, with the same limit, say together which optimizer is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import KnownTask, final_metrics, times_to

_SHARE = 0.1  # of the trials reach the common target


def by_problem(tasks: Sequence[KnownTask], space: CanonicalSpace) -> list[KnownTask]:
    """The tasks; for a space of several optimizers with one in place of all of one problem."""
    return joined(tasks) if len(space.optimizers() or ()) > 1 else list(tasks)


def joined(tasks: Sequence[KnownTask]) -> list[KnownTask]:
    """The tasks, with one in place of all of one problem, which has the problem's name."""
    found: dict[object, list[KnownTask]] = {}
    for number, task in enumerate(tasks):
        found.setdefault(task.problem or number, []).append(task)
    return [_one_task(several) if len(several) > 1 else several[0] for several in found.values()]


def _one_task(tasks: Sequence[KnownTask]) -> KnownTask:
    """All trials of tasks of one problem, as one task.

    Each had a target of its own: the common one is the level that a tenth of all trials reach, and
    times are read off the curves, none of which was stopped early.
    """
    curves = np.concatenate([task.curves for task in tasks])
    one = replace(
        tasks[0],
        name=tasks[0].problem,
        points=[point for task in tasks for point in task.points],
        times=np.concatenate([task.times for task in tasks]),
        ended=np.concatenate([task.ended for task in tasks]),
        curves=curves,
    )
    level = float(np.nanquantile(final_metrics(curves), 1 - _SHARE))
    return replace(one, times=times_to(one, level))
