"""Studies of one problem with different optimizers, joined.

A study of one optimizer does not say whether another one is faster. Studies that trained the same
model on the same data to the same limit say it together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import Array, KnownTask, final_metrics, times_to

_SHARE = 0.1  # of the trials reach the target of studies that had different ones


def joined(tasks: Sequence[KnownTask], space: CanonicalSpace) -> list[KnownTask]:
    """The tasks; for a space of several optimizers with one task in place of all of one problem."""
    if len(space.optimizers() or ()) < 2:
        return list(tasks)
    found: dict[object, list[KnownTask]] = {}
    for number, task in enumerate(tasks):
        found.setdefault(task.problem or number, []).append(task)
    return [one_task(several) if len(several) > 1 else several[0] for several in found.values()]


def one_task(tasks: Sequence[KnownTask]) -> KnownTask:
    """All trials of tasks of one problem as one task, with the name of the first.

    Where their targets differ, its target is the level that a tenth of all trials reach, and times
    are read off the curves.
    """
    one = replace(
        tasks[0],
        points=[point for task in tasks for point in task.points],
        times=_of_all([task.times for task in tasks]),
        ended=_of_all([task.ended for task in tasks]),
        curves=_of_all([task.curves for task in tasks]),
        same=any(task.same for task in tasks),
    )
    best = final_metrics(one.curves)
    if len({task.level for task in tasks}) == 1 or not np.isfinite(best).any():
        return one
    level = float(np.quantile(best[np.isfinite(best)], 1 - _SHARE))
    return replace(one, times=times_to(one, level), level=level)


def _of_all(each: Sequence[Array]) -> Array:
    return np.concatenate(each)
