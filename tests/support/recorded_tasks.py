"""Small tasks with learning curves, of which studies are simulated."""

from __future__ import annotations

import numpy as np

from autotune.algorithms.experience.known_task import KnownTask
from autotune.evaluation.policy_training import recorded


def task(name: str, best: float, points: int = 60, seed: int = 0) -> KnownTask:
    """A task whose curves rise the faster the nearer the logarithm of `lr` is to `best`."""
    rng = np.random.default_rng(seed)
    lr = np.exp(rng.uniform(np.log(1e-3), 0.0, points))
    width = rng.integers(16, 257, points)
    away = np.abs(np.log10(lr) - best)
    seconds = np.broadcast_to(np.arange(1.0, 21.0), (points, 20))
    curves = (1 - np.exp(-seconds / (2 + 10 * away[:, None]))) * (1 - 0.2 * away[:, None])
    rows = [{"lr": float(a), "width": int(b)} for a, b in zip(lr, width, strict=True)]
    return recorded.task(name, rows, curves, seconds)


def tasks(count: int = 4, points: int = 60) -> list[KnownTask]:
    """Tasks of one family whose best rates are near each other; each has its own points."""
    return [task(f"task-{i}", -1.5 + 0.1 * i, points, seed=i) for i in range(count)]
