"""Made-up earlier studies: the best learning rate and the best momentum are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import MARKS, KnownTask
from autotune.space.parameters import Float
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, Report, State, Target, Trial

TARGET = Target("acc", 0.9, limit=100.0)
SPACE = SearchSpace({"lr": Float(1e-4, 1.0, log=True), "drop": Float(0.0, 1.0)})


def share(point: Params, best: float) -> float:
    """The time to the target as a share of the limit: the least at this learning rate."""
    off = abs(math.log10(point["lr"]) - math.log10(best))
    return 0.1 * 8.0**off + 0.2 * abs(point["drop"] - 0.2)


def metric(time: float, needed: float) -> float:
    """The accuracy after a share of the limit, of a configuration that needs another share."""
    return min(0.9 * math.sqrt(time / needed), 0.99)


def known(
    name: str,
    best: float,
    count: int = 60,
    space: SearchSpace = SPACE,
    needs: Callable[[Params, float], float] = share,
    **more: Any,
) -> KnownTask:
    """A study of random points that all ran to their limit."""
    points = space.sample(count, seed=len(name))
    times = np.array([needs(p, best) for p in points])
    curves = np.array([[metric(mark, needed) for mark in MARKS] for needed in times])
    reached = np.where(times < 1, times, np.inf)
    canonical = CanonicalSpace(space)
    rows = [canonical.point(p) for p in points]
    return KnownTask(name, rows, reached, np.minimum(times, 1.0), curves, **more)


def ended(number: int, point: Params, needed: float, cap: float = 1.0) -> Trial:
    """A trial that ended at its target, or was stopped at `cap`; both are shares of the limit."""
    end = min(needed, cap)
    state = State.REACHED if needed <= cap and needed < 1 else State.CENSORED
    marks = [*(m for m in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8) if m < end), end]
    reports = tuple(Report(i + 1, 100 * m, {"acc": metric(m, needed)}) for i, m in enumerate(marks))
    return Trial(
        number,
        point,
        point,
        state=state,
        seconds=100 * end,
        reports=reports,
        reason="x",
        ended_at=float(number),
    )
