"""Disturbed trials: what they would have taken with their cores and GPUs to themselves."""

from __future__ import annotations

from dataclasses import replace

from autotune.trial.target import Target
from autotune.trial.values import Report, Trial


def undisturbed(trial: Trial) -> Trial:
    """The trial as it would have been undisturbed: without the seconds in which it waited.

    An estimate, by which those that decide compare a disturbed trial with others; it is no result.
    Any other trial is returned as it is.

    >>> from autotune.trial import Clock
    >>> report = Report(10, 8.0, {}, Clock(train=8.0), waited=3.0)
    >>> slow = Trial(0, {}, reports=(report,), seconds=8.0)
    >>> slow.cpu_share, slow.disturbed, undisturbed(slow).seconds
    (0.625, True, 5.0)
    """
    if not trial.disturbed:
        return trial
    reports = tuple(_undisturbed(report) for report in trial.reports)
    waited = trial.reports[-1].waited or 0.0
    return replace(trial, reports=reports, seconds=max(trial.seconds - waited, 0.0))


def is_spoilt(trial: Trial, target: Target) -> bool:
    """Whether a disturbed trial would have had another result with its cores and GPUs to itself.

    A time to the target always. Without a value only where the limit in seconds ended the trial: a
    metric after so many steps, or at the trainer's own end, is the same on a busy machine.
    """
    if not trial.disturbed:
        return False
    return target.timed or (target.limit is not None and trial.seconds >= target.limit)


def _undisturbed(report: Report) -> Report:
    seconds = report.seconds - (report.waited or 0.0)
    return replace(report, seconds=max(seconds, 0.0), waited=None)
