"""Who is confirmed when the search is over, in which order, and how far that is.

Everything here is a function of the trials, as in `repeats`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.algorithms.ranking.repeats import again, confirming, searched, standings, timed
from autotune.trial import INTERRUPTED_REASONS, State, Target, Trial


def finalists(trials: Sequence[Trial], target: Target, top: int) -> list[Trial]:
    """What is to be confirmed: the `top` fastest configurations, and the baseline.

    They are chosen without their confirmations. A fork that cannot be trained from scratch in one
    go is passed over.
    """
    found = list[Trial]()
    for trial in standings(trials, target):
        alike = any(t.config == trial.config for t in found)
        if len(found) < top and not alike and again(trial, trials) is not None:
            found.append(trial)
    numbers = {t.number for t in found}
    own = searched(trials)
    baseline = [t for t in own if t.kind == "baseline" and t.number not in numbers]
    return [*found, *(t for t in baseline if found and t.state in (State.REACHED, State.CENSORED))]


def next_to_confirm(
    trials: Sequence[Trial], target: Target, repeats: int, top: int
) -> Trial | None:
    """Whose turn it is, or None once every finalist has its confirmations.

    Round by round everyone runs once, and each round begins with another one. Runs that the time
    limit cut off say nothing and are made up for.
    """
    if not repeats:
        return None
    final = finalists(trials, target, top)
    runs = [t.repeats for t in confirming(trials) if t.reason != "budget"]
    counts = {t.number: runs.count(t.number) for t in final}
    done = min(counts.values(), default=repeats)
    if done >= repeats:
        return None
    first = done % len(final)
    turns = [*final[first:], *final[:first]]
    return next(t for t in turns if counts[t.number] == done)


@dataclass(frozen=True)
class Progress:
    """How far the confirmations are: runs that are done, that run now, and that there are to be.

    `planned` is None while the search goes on, which may yet find other finalists.
    """

    done: int
    running: int
    planned: int | None


def progress(
    trials: Sequence[Trial], target: Target, repeats: int, top: int, total: int
) -> Progress:
    """The progress of `repeats` runs of each finalist after a search of `total` trials."""
    runs = confirming(trials)
    running = sum(t.resumable for t in runs)
    own = searched(trials)
    if len(own) < total or any(t.resumable for t in own):
        return Progress(sum(timed(t) for t in runs), running, None)
    final = {t.number for t in finalists(trials, target, top)}
    ended = [
        t for t in runs if t.repeats in final and t.ended and t.reason not in INTERRUPTED_REASONS
    ]
    counts = Counter(t.repeats for t in ended)
    done = sum(min(counts[number], repeats) for number in final)
    return Progress(done, running, repeats * len(final))
