"""A study's checkpoints: when one is asked for, written down, and not needed any more."""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.algorithms.ranking.best import by_expected_time
from autotune.storage import retention
from autotune.study.driver.state import Book, warn
from autotune.trial import Checkpoint, Saved, State, Trial

RACED = 3
"""Of so many of the fastest trials checkpoints are kept at least, while leaders are raced."""


def forks_every(book: Book) -> float:
    """Seconds between checkpoints that the controller wants to fork from; infinite for none."""
    every: float = getattr(book.plan.controller, "checkpoint_interval", math.inf)
    return every


def may_fork(book: Book) -> bool:
    """Whether there is a controller that may fork: one that does not say so may as well."""
    controller = book.plan.controller
    said = getattr(controller, "checkpoint_interval", None)
    return controller is not None and (said is None or math.isfinite(said))


def due(book: Book, trial: Trial) -> bool:
    """Whether a checkpoint is due: by the failure policy, or for a controller that forks."""
    nothing_to_fork = trial.kind != "trial" or book.count >= book.plan.trials
    every = math.inf if nothing_to_fork else forks_every(book)
    return retention.is_due(trial, book.plan.experiment.failure, every, book.target.clock)


def wanted_at_end(book: Book, trial: Trial, state: State, reason: str) -> bool:
    """Whether a trial that ends so is to save its state: to be resumed, or as one of the best."""
    goes_on = replace(trial, state=state, reason=reason).goes_on
    keep = goes_on or _is_best(book, trial, state)
    return keep and not retention.is_saved(trial)


def _is_best(book: Book, trial: Trial, state: State) -> bool:
    if trial.repeats is not None or state is not State.REACHED:
        return False
    return retention.is_among_best(trial, book.others(trial), state, _count(book))


def _count(book: Book) -> int:
    """Of how many of the fastest trials checkpoints are kept now.

    While leaders are raced, and may turn out to have been lucky, of those that would lead then.
    """
    asked = book.plan.experiment.failure.keep_checkpoints
    searching = book.count < book.plan.trials or bool(book.ledger.running())
    return max(asked, RACED) if book.plan.racing and searching else asked


def saved(book: Book, trial: Trial, checkpoint: Checkpoint | None) -> None:
    """Write down a new checkpoint, then remove the last but one: the last may be damaged."""
    if checkpoint is None:
        return
    book.record(Saved(trial.number, checkpoint, book.at()))
    old, now = trial.earlier, book.trials[trial.number]
    if old is not None and old.path not in {c.path for c in (now.earlier, now.checkpoint) if c}:
        discard(book, old.path)


def discard(book: Book, path: str) -> None:
    """Remove a checkpoint, once it is on disk that it is not needed any more."""
    book.journal.sync()
    retention.discard(path, book.checkpoints)


def sweep(book: Book) -> None:
    """Remove the checkpoints of ended trials, but the best ones' and those to be resumed."""
    if not book.pool.realtime or not book.any_saved:
        return
    book.journal.sync()
    try:
        trials, count = book.trials.values(), _count(book)
        best = by_expected_time(book.everyone(), book.target) if book.repeated else ()
        retention.sweep(book.checkpoints, trials, book.standing(), count, book.saving, best)
    except OSError as error:  # it is swept again when the next trial ends
        warn(f"checkpoints that are not needed could not be removed: {error}")
