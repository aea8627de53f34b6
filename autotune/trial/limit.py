"""Limits that a trial has to keep to reach its target: a size, a latency, any metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import checked
from autotune.trial.checks import finite
from autotune.trial.milestone import Metrics
from autotune.trial.target import Target
from autotune.trial.trainer import said
from autotune.trial.values import Report, State, Trial


@dataclass(frozen=True)
class Limit:
    """The most that a metric may be when a trial has its result; else the trial is INFEASIBLE.

    What counts is the value in the report that is the trial's result: at the target or, without a
    value of it, in its best report. It is one that the trainer reports or measures
    (`Milestone.measure`).

    Args:
        metric: its name, as in "model_megabytes".
        at_most: the most that it may be.

    Raises:
        UserError: an argument outside its range, named with its value.

    >>> Limit("latency_ms", 2.5).broken({"latency_ms": 3.14159})
    'latency_ms 3.142 > 2.5'
    """

    metric: str
    at_most: float

    @checked
    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise ValueError(f"Limit metric must be a metric's name but got {self.metric!r}")
        finite("Limit at_most", self.at_most)

    def __str__(self) -> str:
        """In words: `model_megabytes at most 0.1`."""
        return f"{self.metric} at most {self.at_most:g}"

    def broken(self, metrics: Metrics) -> str:
        """By how much metrics break it, in words; empty where they do not, or lack it."""
        value = metrics.get(self.metric)
        if value is None or value <= self.at_most:
            return ""
        few = f"{value:.4g}"
        shown = few if float(few) > self.at_most else repr(value)  # all digits, where few hide it
        return f"{self.metric} {shown} > {self.at_most:g}"


def measured_by(train: Callable[..., Any]) -> tuple[str, ...]:
    """The metrics that the trainer says (`train.measures`) that its milestones can measure."""
    found = said(train, "measures", ())
    return tuple(found) if isinstance(found, Sequence) and not isinstance(found, str) else ()


def to_measure(
    limits: Sequence[Limit], target: Target, trial: Trial, train: Callable[..., Any]
) -> list[str]:
    """The limited metrics that the trial's last report, if it is its result, lacks."""
    report = trial.reports[-1]
    if not limits or not is_result(target, trial):
        return []
    can = measured_by(train)
    return [m for m in missing(limits, report) if m in can]


def is_result(target: Target, trial: Trial) -> bool:
    """Whether the last report would be the result: at the target, or the one that counts."""
    report = trial.reports[-1]
    if target.timed:
        return target.in_time(report) and target.met(trial.reports)
    return target.counted(trial) is report


def missing(limits: Sequence[Limit], report: Report) -> list[str]:
    """The limited metrics that a report does not have."""
    return list(dict.fromkeys(x.metric for x in limits if x.metric not in report.metrics))


def all_broken(limits: Sequence[Limit], metrics: Mapping[str, float]) -> str:
    """All limits that metrics break, in words; empty where none is."""
    return ", ".join(filter(None, (limit.broken(metrics) for limit in limits)))


def broke_limit(trial: Trial) -> bool:
    """Whether a trial is INFEASIBLE as its result broke a limit, and not for want of memory.

    The reason is that of `Limit.broken`; all other reasons of such trials are fixed words.
    """
    return trial.state is State.INFEASIBLE and bool(trial.reports) and " > " in trial.reason


def last_values(limits: Sequence[Limit], trial: Trial) -> dict[str, float | None]:
    """The last value that a trial has of each metric that is limited; None where it has none."""
    found: dict[str, float | None] = dict.fromkeys(limit.metric for limit in limits)
    for report in trial.reports:
        found |= {name: report.metrics[name] for name in found if name in report.metrics}
    return found
