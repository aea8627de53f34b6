"""What trials that begin from another one's checkpoint have saved (`algorithms.beginnings`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from autotune.algorithms.ranking.repeats import searched
from autotune.trial import Trial


def shared(trials: Iterable[Trial]) -> list[Trial]:
    """The trials that began from another one's checkpoint, with the same configuration up to it."""
    return [t for t in trials if t.origin is not None and not t.is_fork]


def saved_seconds(trials: Iterable[Trial]) -> float:
    """Worker-seconds that would have been trained again: beginnings, times the ranks of a trial."""
    return math.fsum(
        t.origin.checkpoint.clock.seconds("wall") * t.hardware.num_workers
        for t in shared(trials)
        if t.origin is not None
    )


def sentence(trials: Sequence[Trial]) -> str:
    """How many trials began so and what that saved, in words; empty where none did."""
    own = shared(trials)
    if not own:
        return ""
    count = len(searched(trials))
    return (
        f"{len(own)} of {count} trials began from another's checkpoint, which saved "
        f"{saved_seconds(own):.0f} worker-seconds"
    )


def to_json(trials: Sequence[Trial]) -> Mapping[str, float | str] | None:
    """The same as JSON types; None where none did."""
    own = shared(trials)
    if not own:
        return None
    return {
        "trials": len(own),
        "saved_worker_seconds": saved_seconds(own),
        "said": sentence(trials),
    }
