"""Which trials are confirmed when the search is over, in which order, and the progress of that.

Everything here is a function of the trials, as in `repeats`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.algorithms.ranking.best import by_expected_result
from autotune.algorithms.ranking.repeats import config_from_scratch, confirming, searched, timed
from autotune.trial import BUDGET, INTERRUPTED_REASONS, State, Target, Trial


def finalists(trials: Sequence[Trial], target: Target, top: int) -> list[Trial]:
    """The trials to confirm: the `top` best configurations, and the baseline.

    They are chosen without their confirmations, by the time that one more run should take: what may
    miss the target, though no run has shown it, wastes its confirmations. A fork that cannot be
    trained from scratch in one run is skipped.
    """
    fastest = list[Trial]()
    for trial in by_expected_result(trials, target):
        is_new = all(t.config != trial.config for t in fastest)
        if len(fastest) < top and is_new and config_from_scratch(trial, trials) is not None:
            fastest.append(trial)
    numbers = {t.number for t in fastest}
    others = [t for t in searched(trials) if t.kind == "baseline" and t.number not in numbers]
    baseline = [t for t in others if fastest and (t.succeeded or t.state is State.CENSORED)]
    return [*fastest, *baseline]


def next_to_confirm(
    trials: Sequence[Trial], target: Target, repeats: int, top: int
) -> Trial | None:
    """The finalist to run next, or None once every finalist has its confirmations.

    In each round every finalist runs once, and each round begins with another finalist. Runs that
    the time limit interrupted do not count and are repeated.
    """
    if not repeats:
        return None
    final = finalists(trials, target, top)
    runs = [t.repeats for t in confirming(trials) if t.reason != BUDGET]
    counts = {t.number: runs.count(t.number) for t in final}
    done = min(counts.values(), default=repeats)
    if done >= repeats:
        return None
    first = done % len(final)
    turns = [*final[first:], *final[:first]]
    return next(t for t in turns if counts[t.number] == done)


@dataclass(frozen=True)
class Progress:
    """How many confirmations are done, are running, and are planned.

    `planned` is None during the search, which may still find other finalists.
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
