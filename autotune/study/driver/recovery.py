"""Trials that broke off: what a new driver does with the journal, and what goes on from where.

Each decision is one `Lost` in the journal, after which the trial waits for a worker group again,
at its checkpoint.
"""

from __future__ import annotations

from autotune.backends.protocol import Broke, Raised
from autotune.errors import StudyError
from autotune.storage import checkpoint_files
from autotune.study.driver import decisions
from autotune.study.driver.checkpoints import discard
from autotune.study.driver.decisions import judge
from autotune.study.driver.forking import end_exploited
from autotune.study.driver.microbatch import halved
from autotune.study.driver.replication import alone
from autotune.study.driver.state import Book, warn
from autotune.trial import Lost, State, Stop, Trial

_MOST_UNREAD = 10  # times in a row that a checkpoint is out of reach before the study waits for you
MOST_ATTEMPTS = 20  # from then on a lost node is a retry: the trial may be what takes them down


def take_up(book: Book) -> None:
    """Judge and take up again what an earlier driver left running or cut off."""
    end_exploited(book, book.everyone())
    if book.pool.realtime:
        _make_root(book)
    for trial in book.everyone():
        if not trial.goes_on:
            continue
        if not book.plan.search and not alone(trial):  # left for a driver that searches
            decisions.interrupt(book, trial)
            continue
        verdict = judge(trial, book.others(trial), book.target, book.plan.pruner)
        if verdict is not None and not trial.ended:
            decisions.end(book, trial.number, *verdict)
        elif trial.attempts or trial.ended:
            book.record(Lost(trial.number, "driver restarted", broke=False, at=book.at()))


def _make_root(book: Book) -> None:
    """Make the root of checkpoints; not anew where some were saved in a place of their own.

    There it is missing because its mount is. In the study's own folder what is not there is gone.
    """
    own = not book.plan.checkpoints
    if own != book.any_saved:
        return
    try:
        checkpoint_files.make_root(book.checkpoints)
    except OSError as error:
        warn(f"no checkpoints can be saved in {book.checkpoints}: {error.strerror}")


def broke(book: Book, trial: Trial, signal: Broke) -> None:
    """Go on with other workers, as often as the failure policy allows."""
    counts = not signal.node_lost or trial.attempts >= MOST_ATTEMPTS
    if signal.unread:
        _out_of_reach(book, trial, signal)
    elif not counts or trial.retries < book.plan.experiment.failure.max_retries:
        book.record(Lost(trial.number, signal.reason, signal.error, counts, book.at()))
    else:
        stop = Stop(signal.reason, f"{trial.attempts} attempts")
        decisions.end(book, trial.number, State.FAILED, stop, signal.error)


def _out_of_reach(book: Book, trial: Trial, signal: Broke) -> None:
    """Go on trying where the checkpoint's store gives no answer; the trial loses nothing.

    Raises:
        StudyError: it was tried often enough; the study can be resumed, the checkpoint is kept.
    """
    number, tries = trial.number, book.unread.get(trial.number, 0) + 1
    book.unread[number] = tries
    said = f"trial {number}: its checkpoint cannot be reached ({signal.reason})"
    if tries >= _MOST_UNREAD:
        why = "resume the study when it can, or make its folder anew if all in it is lost"
        raise StudyError(f"{said}, tried {tries} times: {why}")
    warn(f"{said}: it is tried again")
    book.record(Lost(number, "checkpoint out of reach", signal.error, broke=False, at=book.at()))


def raised(book: Book, trial: Trial, signal: Raised) -> None:
    """Go on where something else than the trainer is at fault; end the trial where it is."""
    if signal.damaged:
        _damaged(book, trial, signal)
    elif signal.out_of_memory:
        _out_of_memory(book, trial, signal)
    else:
        decisions.end(book, trial.number, State.FAILED, Stop(signal.reason), signal.error)


def _damaged(book: Book, trial: Trial, signal: Raised) -> None:
    """Go on from the checkpoint before; a fork that has none is nothing without its parent."""
    checkpoint = trial.checkpoint
    if checkpoint is None or (trial.earlier is None and trial.origin is not None):
        decisions.end(book, trial.number, State.FAILED, Stop(signal.reason), signal.error)
        return
    step = trial.earlier.step if trial.earlier is not None else 0
    said = f"the checkpoint at step {checkpoint.step} cannot be used ({signal.reason})"
    warn(f"trial {trial.number}: {said}: it goes on from step {step}")
    number, at = trial.number, book.at()
    book.record(Lost(number, "checkpoint damaged", signal.reason, False, at, damaged=True))
    discard(book, checkpoint.path)


def _out_of_memory(book: Book, trial: Trial, signal: Raised) -> None:
    """Go on with half the microbatch on all ranks, or end where none is left."""
    number, reason = trial.number, "out of memory"
    smaller = halved(trial) if book.memory_keys else None
    if smaller is None:
        stop = Stop(reason, signal.reason)
        decisions.end(book, number, State.INFEASIBLE, stop, signal.error)
        return
    book.record(Lost(number, reason, broke=False, at=book.at(), microbatch=smaller))
