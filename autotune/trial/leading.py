"""Which of several trials leads, and on which hardware most of them ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from autotune.trial.hardware import Hardware
from autotune.trial.values import State, Trial


def incumbent(trials: Sequence[Trial], hardware: Hardware | None = None) -> Trial | None:
    """The fastest trial that reached the target, on `hardware` if that is given.

    This is what the search compares other trials with; `algorithms.ranking.best` defines which
    trial of a study is best.

    Trials with an index (`trial_index.Others`) answer from it; any others are scanned.
    """
    indexed: Callable[[Hardware | None], Trial | None] | None = getattr(trials, "fastest", None)
    if indexed is not None:
        return indexed(hardware)
    reached = [t for t in trials if t.state is State.REACHED and hardware in (None, t.hardware)]
    return min(reached, key=lambda t: (t.seconds, t.number), default=None)


def usual_hardware(trials: Sequence[Trial]) -> Hardware | None:
    """The hardware of most trials, with ties the first one's; None if no trial has run."""
    ran = Counter(t.hardware for t in trials if t.attempts)
    return max(ran, key=lambda hardware: ran[hardware], default=None)
