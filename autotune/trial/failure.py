"""What a study does about workers that die, hang or fail, and what it saves."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class FailurePolicy:
    """What the study does about workers that die, hang or fail.

    Args:
        hang_timeout: seconds without a milestone from every rank after which a trial is broken off.
        max_retries: times a trial is started again from its last checkpoint after its workers
            died or hung; an exception of the trainer itself is not retried.
        max_consecutive_failed_trials: the study ends (exit code 4) after so many FAILED in a row.
        checkpoint_interval: seconds of training between the checkpoints of a running trial.
        keep_checkpoints: of so many of the fastest trials the last checkpoint is kept; of three at
            least while leaders are raced (`ranking.racing`): the first may have been lucky.
        checkpoint_folder: where checkpoints lie, a folder that all workers see or a URL that
            fsspec knows (`s3://bucket/folder`); by default in the study folder.
    """

    hang_timeout: float = 600.0
    max_retries: int = 2
    max_consecutive_failed_trials: int = 5
    checkpoint_interval: float = 60.0
    keep_checkpoints: int = 1
    checkpoint_folder: str | None = None

    def __post_init__(self) -> None:
        for name, lowest in (("hang_timeout", 0.1), ("checkpoint_interval", 0.0)):
            value = getattr(self, name)
            finite(name, value)
            if value < lowest:
                raise ValueError(f"{name} must be at least {lowest} seconds but got {value!r}")
        counts = {"max_retries": 0, "max_consecutive_failed_trials": 1, "keep_checkpoints": 1}
        for name, least in counts.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer >= {least} but got {value!r}")
        place = self.checkpoint_folder
        if place is not None and (not isinstance(place, str) or not place):
            raise ValueError(f"checkpoint_folder must be a folder or a URL but got {place!r}")


def finite(name: str, value: object) -> None:
    """Raises ValueError, which names the argument, unless `value` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number but got {value!r}")
