"""What a trial's last report means for it: whether it goes on, and how it ends if not."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from autotune.algorithms.pruners.rules import Pruner
from autotune.errors import StudyError, UserError, unknown
from autotune.study.driver.checkpoints import sweep
from autotune.study.driver.state import Book
from autotune.trial import CUT, Ended, State, Stop, Target, Trial, diverged

Rule = TypeVar("Rule")


def judge(
    trial: Trial, others: Sequence[Trial], target: Target, pruner: Pruner
) -> tuple[State, Stop] | None:
    """How the trial ends after its last report, or None if it goes on.

    A baseline is measured to its end, and so is a repeat: only the target's limit censors it.
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
    if runs_to_its_end(trial):
        return None
    stop = ruled("pruner", pruner, trial, others, target)
    return (State.CENSORED, stop) if stop is not None else None


def runs_to_its_end(trial: Trial) -> bool:
    """Whether no pruner may stop the trial: it is there to be measured."""
    return trial.kind == "baseline" or trial.repeats is not None


def ruled(
    what: str,
    rule: Callable[[Trial, Sequence[Trial], Target], Rule],
    trial: Trial,
    others: Sequence[Trial],
    target: Target,
) -> Rule:
    """What a pruner or controller decides; its own errors become one line that names the place.

    A `UserError` is such a line already.
    """
    try:
        return rule(trial, others, target)
    except UserError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno}"
        raise UserError(f"the {what} raised {type(error).__name__} at {place}: {error}") from error


def check_metric(trial: Trial, target: Target, ended: bool) -> None:
    """Tell a metric that is never reported: at once if it is a near miss, else at a trial's end."""
    told = any(target.metric in report.metrics for report in reversed(trial.reports))
    if told or len(trial.reports) < 2:
        return
    names = {name for report in trial.reports for name in report.metrics}
    if ended or difflib.get_close_matches(target.metric, names, n=1, cutoff=0.87):
        if not names:
            raise UserError(f"the trainer never reported any metric, so not {target.metric!r}")
        raise UserError(unknown("target metric", target.metric, names))


def end(book: Book, number: int, state: State, stop: Stop, error: str = "") -> None:
    """End a trial, running or interrupted.

    Raises:
        UserError: nothing that it reported is the target's metric.
        StudyError: too many trials in a row have failed.
    """
    trial = book.trials[number]
    seconds, at = trial.seconds, book.at()
    book.record(Ended(number, state, stop.reason, seconds, stop.detail, error, at))
    if state is State.CENSORED and stop.reason not in (*CUT, "diverged"):
        check_metric(trial, book.target, ended=True)
    sweep(book)
    limit = book.plan.experiment.failure.max_consecutive_failed_trials
    last = book.ledger.last_ended(limit)
    if len(last) == limit and all(t.state is State.FAILED for t in last):
        raise StudyError(f"{limit} trials failed in a row; the last: {stop.reason}")


def interrupt(book: Book, trial: Trial) -> None:
    """Leave a trial that runs to a later driver, which goes on from its last checkpoint."""
    if not trial.ended:
        seconds, at = trial.seconds, book.at()
        book.record(Ended(trial.number, State.CENSORED, "interrupted", seconds, at=at))


def abandon(book: Book) -> None:
    """Leave all that runs to a later driver."""
    for trial in book.everyone():
        interrupt(book, trial)
