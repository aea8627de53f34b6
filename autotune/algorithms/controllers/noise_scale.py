"""Batches that grow with the gradient noise scale, which the trainer measures.

Far below the noise scale twice the batch needs half the steps, far above it as many: McCandlish et
al. 2018, arXiv 1812.06162. The scale grows while the loss falls, so a batch that is right at the
end is too large at the beginning. The batch size doubles when it is below a share of the measured
noise scale, and never shrinks (Smith et al. 2017, arXiv 1711.00489, grow it by a schedule).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from autotune.algorithms.controllers.features import require_allowed
from autotune.errors import UserError, unknown
from autotune.schedules import Constant, Schedule, as_schedule, substituted
from autotune.trial import Change, Target, Trial

METRIC, MEASURED = "gradient_noise_scale", "gradient_variance"
POWERS = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Of the factor of the batch size, by which the learning rate is multiplied."""


@dataclass(frozen=True)
class BatchRamp:
    """The controller `noise_scale`, which makes it.

    Args:
        share: of the noise scale up to which the batch size grows.
        lr: a name of `POWERS`.
        most: the largest factor of the first batch size.
    """

    share: float
    lr: str
    most: float
    checkpoint_interval: ClassVar[float] = math.inf  # it never forks

    def __call__(self, trial: Trial, others: Sequence[Trial], target: Target) -> Change | None:
        _check_reports(trial)
        now, first = trial.reports[-1].metrics, _first_batch_size(trial)
        if trial.kind == "baseline" or first is None:
            return None
        noise, size = now.get(METRIC, math.nan), round(now.get("batch_size", first))
        if not (2 * size <= self.share * noise and 2 * size <= self.most * first):
            return None
        power = 0.0 if _follows(trial) else POWERS[self.lr]
        return Change(lr_factor=2**power, batch_size=2 * size)

    def within(self, allowed: Sequence[str]) -> BatchRamp:
        """This controller for an experiment that allows these knobs.

        Raises:
            UserError: it turns another knob.
        """
        require_allowed(("batch_size", *(("lr",) if POWERS[self.lr] else ())), allowed)
        return self


def noise_scale(share: float = 1.0, *, lr: str = "sqrt", most: float = 8.0) -> BatchRamp:
    """Double the batch size while it is below a share of the gradient noise scale.

    At most once a milestone, and never beyond `most` times the first batch size. The trainer must
    report `gradient_noise_scale`: those in `trainers/` do with `noise_scale_every`.

    Args:
        share: of the noise scale up to which the batch size grows, > 0.
        lr: how the learning rate grows with it: `sqrt`, `linear` or `constant`. A learning rate
            that follows the batch size by its own schedule only does that.
        most: the largest factor of the first batch size, at least 2.

    Raises:
        ValueError: an argument outside its range.
    """
    if not 0 < share < math.inf:
        raise ValueError(f"noise_scale share must be more than 0 and finite but got {share!r}")
    if lr not in POWERS:
        raise ValueError(unknown("noise_scale lr", lr, POWERS))
    if not 2 <= most < math.inf:
        raise ValueError(f"noise_scale most must be at least 2 and finite but got {most!r}")
    return BatchRamp(share, lr, most)


def _first_batch_size(trial: Trial) -> float | None:
    sizes = (r.metrics["batch_size"] for r in trial.reports if "batch_size" in r.metrics)
    return next(sizes, None)


def _follows(trial: Trial) -> bool:
    """Whether the learning rate follows the batch size by its own schedule."""
    lr, batch_size = trial.config.get("lr"), trial.config.get("batch_size")
    if not isinstance(lr, Schedule) or batch_size is None:
        return False
    return substituted(lr, as_schedule(batch_size), Constant(1.0)) != lr


def _check_reports(trial: Trial) -> None:
    """Raise UserError if the trainer does not measure the noise scale: the first step tells."""
    reported = [report.metrics for report in trial.reports if report.metrics and report.step]
    if reported and not any({METRIC, MEASURED} & metrics.keys() for metrics in reported):
        names = sorted({name for metrics in reported for name in metrics})
        raise UserError(
            f"the controller noise_scale needs the metric {METRIC!r}, which the trainer does not "
            "report: give noise_scale_every to a trainer of trainers/ "
            f"(it reports: {', '.join(names)})"
        )
