"""How long a training is, and where its milestones are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainers.training import Training


@dataclass(frozen=True)
class Course:
    """Lengths in samples.

    Args:
        horizon: in which schedules run from their beginning to their end.
        every: from one milestone to the next.
        end: of the training; infinite where it is ended from outside.

    >>> course = Course(horizon=100.0, every=30, end=70.0)
    >>> [course.next(0), course.next(30), course.next(60)], course.progress(150)
    ([30, 60, 70.0], 1.0)
    """

    horizon: float
    every: int
    end: float

    @classmethod
    def of(cls, training: Training, epoch: int) -> Course:
        """That of a training whose epochs have so many samples."""
        end = math.inf if training.max_epochs is None else training.max_epochs * epoch
        return cls(training.horizon * epoch, training.milestone or epoch, end)

    def progress(self, seen: float) -> float:
        """Of the schedules after so many samples, in [0, 1]."""
        return min(seen / self.horizon, 1.0)

    def next(self, seen: int) -> float:
        """The samples at the next milestone."""
        return min((seen // self.every + 1) * self.every, self.end)
