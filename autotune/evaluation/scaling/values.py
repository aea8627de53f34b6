"""What a law is fitted to: what configurations needed, and how fast trials trained."""

from __future__ import annotations

import math
from dataclasses import dataclass


class TooLittleError(ValueError):
    """The trials do not say what a law needs; the message says what is missing."""


@dataclass(frozen=True)
class Run:
    """What a configuration needed to the target.

    Args:
        batch_size: global, the mean over its steps.
        samples: to the target; where it was not `reached`, at the end, which is a lower bound.
        reached: whether it has.
        noise_scale: the gradient noise scale as the trainer reports it, a batch size; or None.
    """

    batch_size: float
    samples: float
    reached: bool = True
    noise_scale: float | None = None

    @property
    def octave(self) -> int:
        """Equal for batch sizes that are nearest to the same power of two."""
        return round(math.log2(self.batch_size))


@dataclass(frozen=True)
class Timing:
    """How fast a trial trained.

    Args:
        batch_size: global, the mean over its steps.
        workers: its ranks.
        seconds: of training for a sample.
        exposed: the share of a step in which ranks only communicate, or None.
    """

    batch_size: float
    workers: int
    seconds: float
    exposed: float | None = None

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.seconds * self.batch_size

    @property
    def octave(self) -> int:
        """As a run's, of the samples of one worker."""
        return round(math.log2(self.batch_size / self.workers))
