"""Configurations run again: races while the study searches, confirmations when it is over.

Who is to be run again is decided in `ranking.racing` and `ranking.finalists`; here it becomes a
trial, with the seed that makes it comparable.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.algorithms.ranking.finalists import next_to_confirm
from autotune.algorithms.ranking.repeats import CONFIRM, RACE, again, confirming
from autotune.study.driver.plan import fresh_seed
from autotune.study.driver.state import Book
from autotune.trial import CUT, Suggested, Trial

_LATE = 0.5  # of the search: who leads before that will be overtaken anyway


def alone(trial: Trial) -> bool:
    """Whether the trial is to have the hardware for itself."""
    return trial.kind == CONFIRM and trial.repeats is not None


def waiting(book: Book) -> Trial | None:
    """The first trial that has no worker group, because its last one broke off.

    Confirmations come last: they run alone.
    """
    if not book.repeated:
        return book.ledger.waiting()
    left = (t for t in book.ledger.running() if not t.placed)
    return min(left, key=lambda t: (alone(t), t.number), default=None)


def race(book: Book) -> Trial | None:
    """A race of the leader, if one is due."""
    leading = due(book)
    return _repeat(book, leading, RACE) if leading is not None else None


def due(book: Book) -> Trial | None:
    """The leader, if it is to be raced now."""
    share = book.plan.racing
    if not share or book.ledger.leader() is None or book.over() < _LATE:
        return None
    return book.shown.due(share)


def finalist(book: Book) -> Trial | None:
    """The trial to be confirmed next, once all others have ended."""
    if not book.plan.repeats or book.ledger.running():
        return None
    return next_to_confirm(book.everyone(), book.target, book.plan.repeats, book.plan.top)


def confirm(book: Book, trial: Trial) -> Trial:
    """The trial's next confirmation."""
    return _repeat(book, trial, CONFIRM)


def _repeat(book: Book, trial: Trial, kind: str) -> Trial:
    """A new trial that runs the configuration of `trial` again on a fresh seed."""
    everyone = book.everyone()
    number, config = len(everyone), again(trial, everyone)
    assert config is not None, "only what can be run again is chosen"
    if kind == CONFIRM:
        seed = _round_seed(book, trial, everyone)
    else:
        seed = fresh_seed(book.plan.seed, number, everyone)
    event = Suggested(number, config, None, kind, seed, book.at(), repeats=trial.number)
    book.record(event)
    return book.trials[number]


def _round_seed(book: Book, trial: Trial, everyone: Sequence[Trial]) -> int:
    """The seed of the trial's next confirmation: in each round all candidates have the same.

    What they have in common (the order of the data) then says nothing of which is faster.
    """
    own = [t for t in confirming(everyone) if t.repeats == trial.number and t.reason not in CUT]
    used = [t for t in everyone if t.kind != CONFIRM]
    return fresh_seed(book.plan.seed, f"round {len(own)}", [*used, *own])
