"""How a trial ends: written down, its checkpoints swept, and whether the study can go on."""

from __future__ import annotations

from autotune.driver.book import Book
from autotune.driver.checkpoints import sweep
from autotune.driver.judging import check_metric
from autotune.errors import StudyError
from autotune.trial import CUT, Ended, State, Stop, Trial


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
