"""Limits of a study: what they need to know is measured, and a result that breaks one is none.

The ranks wait at their milestone. Where its report would be the trial's result and lacks a metric
that an `autotune.Limit` limits, they measure it (`Milestone.measure`), with all clocks paused; the
report is written down with it, and only then does anything follow from the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autotune.algorithms.ranking.repeats import PROBE
from autotune.backends.protocol import Measured, Progress
from autotune.errors import UserError, unknown
from autotune.study.driver.state import StudyState
from autotune.trial import Limit, Reported, State, Stop, Target, Trial, after
from autotune.trial.limit import all_broken, measured_by, missing, to_measure


def asked(state: StudyState, signal: Progress) -> bool:
    """Whether the ranks have been asked to measure what the report of `signal` lacks."""
    assert signal.report is not None
    experiment, number = state.settings.experiment, signal.trial
    if not experiment.limits or state.trials[number].kind == PROBE:
        return False
    trial = after(state.trials[number], Reported(number, signal.report))
    if not to_measure(experiment.limits, state.target, trial, experiment.train):
        return False
    if not state.pool.measure(number):
        return False
    state.measuring[number] = signal
    return True


def completed(state: StudyState, signal: Measured) -> Progress:
    """The milestone whose report waited for what has been measured, with it."""
    waiting = state.measuring.pop(signal.trial)
    assert waiting.report is not None
    metrics = {**waiting.report.metrics, **signal.metrics}
    return replace(waiting, report=replace(waiting.report, metrics=metrics))


def within(
    trial: Trial, target: Target, limits: Sequence[Limit], ended: State, stop: Stop
) -> tuple[State, Stop]:
    """The end of a trial that has come to one, if it has a result: INFEASIBLE if it breaks a limit.

    Raises:
        UserError: the report that is its result lacks a metric that is limited.
    """
    result = trial.reports[-1] if ended is State.REACHED else target.counted(trial)
    if not limits or ended not in (State.REACHED, State.COMPLETED) or result is None:
        return ended, stop
    if lacking := missing(limits, result):
        raise UserError(unknown("limited metric", lacking[0], result.metrics))
    broken = all_broken(limits, result.metrics)
    return (State.INFEASIBLE, Stop(broken, stop.detail)) if broken else (ended, stop)


def check_limits(trial: Trial, limits: Sequence[Limit], train: Callable[..., Any]) -> None:
    """Refuse a limited metric that an ended trial never reported and its trainer cannot measure.

    Raises:
        UserError: names the metric and those that are reported or measured.
    """
    names = {name for report in trial.reports for name in report.metrics}
    names |= {*measured_by(train)}
    for limit in limits if len(trial.reports) > 1 else ():
        if limit.metric not in names:
            raise UserError(unknown("limited metric", limit.metric, names))
