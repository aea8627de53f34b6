"""Decisions on a trial at its last report, and its end.

`decide` says whether the trial ends: it has diverged, reached the target or its limit, or the
pruner stops it. If it does not end, `ask_controller` says what the controller changes. `end` and
`interrupt` write an end down. A pruner or a controller that raises, or returns something else than
it may, ends the study with one line (`calls`).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

from autotune.algorithms.pruners.rules import Pruner
from autotune.errors import StudyError, UserError, unknown
from autotune.study.driver.calls import called
from autotune.study.driver.checkpoints import sweep
from autotune.study.driver.state import StudyState
from autotune.trial import (
    INTERRUPTED_REASONS,
    Change,
    Ended,
    Fork,
    State,
    Stop,
    Target,
    Trial,
    diverged,
    undisturbed,
)


def decide(
    trial: Trial, others: Sequence[Trial], target: Target, pruner: Pruner
) -> tuple[State, Stop] | None:
    """The end of a trial after its last report, or None if it continues.

    The pruner comes last, and not for a baseline or a repeat: only the target's limit censors
    these. It sees a trial that is disturbed without the seconds in which it waited.

    Raises:
        UserError: the pruner raised, or returned something else.
    """
    if not trial.reports:
        return None
    bad = diverged(trial.reports[-1].metrics)
    if bad:
        value = trial.reports[-1].metrics[bad]
        return State.CENSORED, Stop("diverged", f"{bad} is {value}")
    if trial.seconds < target.limit and target.met(trial.reports):
        return State.REACHED, Stop("target", f"{target.metric} {target.best(trial):.6g}")
    if trial.seconds >= target.limit:
        return State.CENSORED, Stop("limit", f"{trial.seconds:.2f} of {target.limit:g} s spent")
    if never_pruned(trial):
        return None
    stop = called("pruner", (Stop,), pruner, undisturbed(trial), others, target)
    return (State.CENSORED, stop) if stop is not None else None


def never_pruned(trial: Trial) -> bool:
    """Whether no pruner may stop the trial, because it measures a configuration."""
    return trial.kind == "baseline" or trial.repeats is not None


def ask_controller(state: StudyState, trial: Trial) -> Change | Fork | None:
    """What the controller decides; a trial that repeats a baseline is shown to it as one.

    Raises:
        UserError: the controller raised, or returned something else.
    """
    controller = state.plan.controller
    if controller is None:
        return None
    repeated = state.trials.get(trial.repeats) if trial.repeats is not None else None
    if repeated is not None and repeated.kind == "baseline":
        trial = replace(trial, kind="baseline")
    kinds, given = (Change, Fork), (undisturbed(trial), state.others(trial), state.target)
    decision: Change | Fork | None = called("controller", kinds, controller, *given)
    return decision


def check_metric(trial: Trial, target: Target, ended: bool) -> None:
    """Refuse a target metric that is never reported: at once if a similar name is, else at the end.

    Raises:
        UserError: names the metric and those that are reported.
    """
    reported = any(target.metric in report.metrics for report in reversed(trial.reports))
    if reported or len(trial.reports) < 2:
        return
    names = {name for report in trial.reports for name in report.metrics}
    if ended or difflib.get_close_matches(target.metric, names, n=1, cutoff=0.87):
        if not names:
            raise UserError(f"the trainer never reported any metric, so not {target.metric!r}")
        raise UserError(unknown("target metric", target.metric, names))


def end(state: StudyState, number: int, ended: State, stop: Stop, error: str = "") -> None:
    """End a trial, running or interrupted.

    Raises:
        UserError: nothing that it reported is the target's metric.
        StudyError: too many trials in a row have failed.
    """
    trial = state.trials[number]
    seconds, at = trial.seconds, state.elapsed()
    state.append(Ended(number, ended, stop.reason, seconds, stop.detail, error, at))
    if ended is State.CENSORED and stop.reason not in (*INTERRUPTED_REASONS, "diverged"):
        check_metric(trial, state.target, ended=True)
    sweep(state)
    limit = state.plan.experiment.failure.max_consecutive_failed_trials
    last = state.trial_index.last_ended(limit)
    if len(last) == limit and all(t.state is State.FAILED for t in last):
        raise StudyError(f"{limit} trials failed in a row; the last: {stop.reason}")


def interrupt(state: StudyState, trial: Trial) -> None:
    """Leave a running trial to a later driver, which resumes it from its last checkpoint."""
    if not trial.ended:
        seconds, at = trial.seconds, state.elapsed()
        state.append(Ended(trial.number, State.CENSORED, "interrupted", seconds, at=at))


def interrupt_all(state: StudyState) -> None:
    """Leave all running trials to a later driver."""
    for trial in state.all_trials():
        interrupt(state, trial)
