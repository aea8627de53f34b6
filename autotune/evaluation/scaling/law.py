"""The law of the time to target: samples to the target times seconds per sample.

    samples(B)    = least (1 + B / noise)                      of the global batch size B
    seconds(B, n) = overhead + per_sample B / n + exchange 2 (n - 1) / n     of a step, on n workers
    time(B, n)    = samples(B) / B x seconds(B, n)

The first is the trade-off of McCandlish et al. 2018 (arXiv 1812.06162, equations 2.7 and 2.11): at
the batch size `noise`, the gradient noise scale, a training needs twice the samples of a very small
batch. The last term is the volume of an all-reduce over a ring (Patarasuk and Yuan 2009). For n
workers the batch size of least time is the square root of

    noise n (overhead + exchange 2 (n - 1) / n) / per_sample
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.trial.checks import finite


def ring(workers: int) -> float:
    """What each of n workers sends in an all-reduce over a ring, in sizes of the gradients.

    >>> ring(1), ring(2), ring(8)
    (0.0, 1.0, 1.75)
    """
    return 2 * (workers - 1) / workers


@dataclass(frozen=True)
class Law:
    """Samples to the target and seconds of a step, of one problem on one kind of hardware.

    Args:
        least: samples to the target at a very small batch.
        per_batch: by how many samples more, for each one more in the batch.
        overhead: seconds of a step that depend neither on the batch nor on the workers.
        per_sample: seconds of one worker for a sample.
        exchange: seconds of messages in a step that computation does not hide, on two workers.

    Raises:
        ValueError: one of them is negative or not finite.
    """

    least: float
    per_batch: float
    overhead: float
    per_sample: float
    exchange: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            finite(f"Law {name}", value)
            if value < 0:
                raise ValueError(f"Law {name} must be at least 0 but got {value!r}")

    @property
    def noise(self) -> float:
        """The gradient noise scale, a batch size; infinite where no batch needs more samples."""
        return self.least / self.per_batch if self.per_batch > 0 else math.inf

    def samples(self, batch_size: float) -> float:
        """Samples to the target."""
        return self.least + self.per_batch * batch_size

    def step_seconds(self, batch_size: float, workers: int) -> float:
        """Seconds of a step."""
        computing = self.overhead + self.per_sample * batch_size / workers
        return computing + self.exchange * ring(workers)

    def seconds(self, batch_size: float, workers: int) -> float:
        """Seconds of training to the target.

        >>> law = Law(least=1000.0, per_batch=10.0, overhead=0.01, per_sample=0.001)
        >>> round(law.seconds(100, 1), 3), round(law.seconds(100, 4), 3)
        (2.2, 0.7)
        """
        steps = self.samples(batch_size) / batch_size
        return steps * self.step_seconds(batch_size, workers)

    def device_seconds(self, batch_size: float, workers: int) -> float:
        """What that costs: seconds times workers."""
        return workers * self.seconds(batch_size, workers)

    def best_batch_size(self, workers: int) -> float:
        """The batch size of least time, no whole number; 0 or infinite where the law has no end.

        >>> Law(1000.0, 10.0, 0.01, 0.001).best_batch_size(10)
        100.0
        """
        fixed = self.least * (self.overhead + self.exchange * ring(workers)) * workers
        grows = self.per_batch * self.per_sample
        if fixed == 0:
            return 0.0
        return math.sqrt(fixed / grows) if grows > 0 else math.inf

    def best_in(self, workers: int, low: float, high: float) -> int:
        """The batch size of least time within a range: the same number of samples a worker.

        One or more a worker, also where that is beyond the range.
        """
        inside = min(max(self.best_batch_size(workers), low), high)
        return workers * max(round(inside / workers), 1)
