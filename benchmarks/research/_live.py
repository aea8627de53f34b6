"""A trainer of this package on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from autotune.backends.simulator import SimPoint


def live(
    train: Callable[..., Any], config: dict[str, Any], seed: int, *, epoch: float
) -> Iterator[SimPoint]:
    """An image trainer, whose seconds are epochs of so many samples; it takes changes."""
    running, change = train({**config, "seed": seed}), None
    try:
        while True:
            milestone = running.send(change)
            metrics = milestone.evaluate() if milestone.step else {}
            change = yield SimPoint(milestone.step, milestone.step / epoch, metrics)
    finally:
        running.close()
