"""A trial's clock: its seconds by activity, and what a target counts of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

STEPS = "steps"
CLOCKS = ("train", "wall", STEPS)
"""What a target can count: seconds of training, these and evaluation, or the trainer's steps."""


@dataclass(frozen=True)
class Clock:
    """A trial's seconds by activity. The parts are disjoint; all are maxima over ranks.

    `queue`: suggested, waiting for workers. `setup`: before the first milestone. `data`: training
    stalled on input. `train`: the rest of training. `eval`, `checkpoint`, `restore`: as named.
    `decide`: ranks waiting at a milestone for the driver's decision.
    """

    queue: float = 0.0
    setup: float = 0.0
    data: float = 0.0
    train: float = 0.0
    eval: float = 0.0
    checkpoint: float = 0.0
    restore: float = 0.0
    decide: float = 0.0

    def __add__(self, other: Clock) -> Clock:
        return Clock(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def seconds(self, kind: str) -> float:
        """Seconds on the `train` clock (training and its data), or on `wall` (and evaluation)."""
        training = self.data + self.train
        return training if kind == "train" else training + self.eval

    @property
    def total(self) -> float:
        return math.fsum(getattr(self, f.name) for f in fields(self))


def slowest(clocks: Sequence[Clock]) -> Clock:
    """The clock of a group between two milestones, from the clocks of its ranks.

    Data and training are those of the rank that trained longest: a rank that had its data sooner
    waits for it in the next collective operation, and that wait is not additional training.
    Evaluation is the time of the last rank beyond that. Other parts are maxima over ranks.
    """
    last = max(clocks, key=lambda clock: clock.data + clock.train)
    trained = last.data + last.train
    most = Clock(*(max(getattr(c, f.name) for c in clocks) for f in fields(Clock)))
    evaluated = max(c.data + c.train + c.eval for c in clocks) - trained
    return replace(most, data=last.data, train=last.train, eval=evaluated)


def measured(kind: str, step: int, clock: Clock) -> float:
    """What the target's clock of this kind shows at a step: steps, or seconds.

    >>> measured("steps", 640, Clock(train=2.0)), measured("train", 640, Clock(train=2.0))
    (640.0, 2.0)
    """
    return float(step) if kind == STEPS else clock.seconds(kind)
