"""Forks: a trial's worker group goes on from another trial's checkpoint, as a new trial."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.algorithms.ranking.lineage import origin
from autotune.errors import UserError
from autotune.storage import retention
from autotune.storage.checkpoint_files import copied
from autotune.storage.codec import plain
from autotune.study.driver.decisions import end
from autotune.study.driver.state import Book
from autotune.trial import Checkpoint, Config, Fork, State, Stop, Suggested, Trial


def fork(book: Book, trial: Trial, decision: Fork) -> bool:
    """Let the trial's group go on from another's checkpoint as a new trial, if one is left.

    Given configurations come first. Whoever calls sees to it that no suggestion is being computed:
    it has the next number.

    Raises:
        UserError: the parent has no checkpoint, or the point is none of the space's.
    """
    number = len(book.trials)
    first = len(book.plan.experiment.given())
    room = first <= book.count < book.plan.trials and not book.plan.seeds
    if not room or trial.repeats is not None:
        return False
    parent = book.trials.get(decision.parent)
    if parent is None or parent.checkpoint is None:
        raise UserError(f"the controller forks trial {decision.parent}, which has no checkpoint")
    config = _config(book, decision)
    own = _own_copy(book, parent.checkpoint, number)
    if own is None:
        return False
    came = origin(parent, own, trial.number, decision.params)
    book.record(Suggested(number, config, None, "trial", parent.seed, book.at(), came))
    end_exploited(book, [book.trials[number]])
    book.written.stop(trial.number, None)
    return True


def _config(book: Book, decision: Fork) -> Config:
    """The configuration of a fork; a UserError if the controller's point is none of the space's."""
    space = book.plan.experiment.space
    try:
        return plain(space.config(space.check(decision.params)))
    except ValueError as error:
        raise UserError(f"the controller forks trial {decision.parent}: {error}") from None


def _own_copy(book: Book, checkpoint: Checkpoint, number: int) -> Checkpoint | None:
    """The checkpoint, copied for trial `number`; None if it is gone meanwhile."""
    if not book.pool.realtime:  # on a virtual clock a checkpoint is no folder
        return checkpoint
    return copied(checkpoint, retention.place(book.checkpoints, number))


def end_exploited(book: Book, children: Iterable[Trial]) -> None:
    """End the trials whose place these have taken."""
    for child in children:
        came = child.origin
        if came is None:
            continue
        replaced = book.trials[came.replaces]
        if not replaced.goes_on:
            continue
        said = f"went on as trial {child.number} from trial {came.parent}"
        stop = Stop("exploited", f"{said} at step {came.checkpoint.step}")
        end(book, came.replaces, State.CENSORED, stop)
