"""A trainer of this package on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from autotune.backends.simulator import SimPoint


def live(
    train: Callable[..., Any], config: dict[str, Any], seed: int, *, epoch: float
) -> Iterator[SimPoint]:
    """A trainer, whose seconds are epochs of so many samples; it takes changes and is saved.

    One that goes on from a state has reported its first milestone already.
    """
    running, change = train({**config, "seed": seed}), None
    try:
        if config.get("state"):
            next(running)
        while True:
            milestone = running.send(change)
            metrics = milestone.evaluate() if milestone.step else {}
            seconds = milestone.step / epoch
            change = yield SimPoint(milestone.step, seconds, metrics, save=milestone.state)
    finally:
        running.close()
