"""The two factors of a speedup: fewer samples, and faster ones.

Time to target is samples to the target times seconds per sample, so that a speedup is the product
of two ratios to the baseline: how many fewer samples are needed, and how many more are trained in a
second.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.evaluation.comparison.model import Row
from autotune.trial import STEPS, Target, Trial

_EVEN = 0.005  # a ratio this near to 1 is shown as 1


@dataclass(frozen=True)
class Factors:
    """The two ratios of a speedup; above 1 is better than the baseline.

    Args:
        fewer: the baseline's samples to the target over this one's.
        faster: samples per second over the baseline's.
    """

    fewer: float
    faster: float

    def __str__(self) -> str:
        """The two in words.

        >>> print(Factors(1.8, 1.25))
        1.80 times by fewer samples, 1.25 times by faster ones
        >>> print(Factors(0.5, 1.0))
        0.50 times by more samples, as many a second
        """
        samples = f"{self.fewer:.2f} times by {'fewer' if self.fewer > 1 else 'more'} samples"
        rate = f"{self.faster:.2f} times by {'faster' if self.faster > 1 else 'slower'} ones"
        if abs(self.fewer - 1) < _EVEN:
            samples = "as many samples"
        if abs(self.faster - 1) < _EVEN:
            rate = "as many a second"
        return f"{samples}, {rate}"


def of_row(row: Row) -> Factors | None:
    """Those of a candidate against the baseline; None where samples per second are not known."""
    if not row.throughput_ratio or not row.efficiency_ratio:
        return None
    return Factors(row.efficiency_ratio, row.throughput_ratio)


def of_trials(trial: Trial, baseline: Trial, target: Target) -> Factors | None:
    """Those of one run against one run of the baseline; samples are what steps count.

    None unless both have reached a target that is timed in seconds, on equal hardware.
    """
    if not target.timed or target.clock == STEPS or trial.number == baseline.number:
        return None
    if trial.hardware != baseline.hardware:
        return None
    found = [_spent(run) for run in (trial, baseline)]
    if None in found:
        return None
    (samples, seconds), (other_samples, other_seconds) = (pair for pair in found if pair)
    return Factors(other_samples / samples, (samples / seconds) / (other_samples / other_seconds))


def _spent(trial: Trial) -> tuple[float, float] | None:
    """Samples and seconds of a run that reached the target."""
    seconds = trial.time_to_target
    if seconds is None or seconds <= 0 or not trial.reports or trial.reports[-1].step <= 0:
        return None
    return float(trial.reports[-1].step), seconds
