"""The failure policy of a study: retries, time limits and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.errors import checked, shown
from autotune.trial.checks import LONGEST_SECONDS, finite, is_whole


@dataclass(frozen=True)
class FailurePolicy:
    """How the study handles workers that die, hang or fail, and when it saves checkpoints.

    Args:
        hang_timeout: seconds without a milestone of every rank after which an attempt is ended, at
            most 1e9.
        max_retries: how often a trial is restarted from its last checkpoint after its workers
            died or hung; an exception that the trainer raises is not retried.
        max_consecutive_failed_trials: the study ends (exit code 4) after so many FAILED trials in
            a row.
        checkpoint_interval: seconds of training between the checkpoints of a running trial.
        keep_checkpoints: the number of fastest trials whose last checkpoint is kept; at least five
            while leaders are raced (`ranking.racing`), as the first may not stay the fastest, with
            five that have not been run again, and all finalists until they are confirmed.
        checkpoint_folder: where checkpoints are written, a folder that all workers can access or a
            URL that fsspec supports (`s3://bucket/folder`); by default in the study folder.
    """

    hang_timeout: float = 600.0
    max_retries: int = 2
    max_consecutive_failed_trials: int = 5
    checkpoint_interval: float = 60.0
    keep_checkpoints: int = 1
    checkpoint_folder: str | None = None

    @checked
    def __post_init__(self) -> None:
        for name, lowest in (("hang_timeout", 0.1), ("checkpoint_interval", 0.0)):
            value = getattr(self, name)
            finite(name, value)
            if value < lowest:
                raise ValueError(f"{name} must be at least {lowest} seconds but got {value!r}")
        if self.hang_timeout > LONGEST_SECONDS:
            raise ValueError(
                f"hang_timeout must be at most {LONGEST_SECONDS:g} seconds "
                f"but got {self.hang_timeout!r}"
            )
        counts = {"max_retries": 0, "max_consecutive_failed_trials": 1, "keep_checkpoints": 1}
        for name, least in counts.items():
            value = getattr(self, name)
            if not is_whole(value, least):
                raise ValueError(f"{name} must be an integer >= {least} but got {shown(value)}")
        folder = self.checkpoint_folder
        if folder is not None and (not isinstance(folder, str) or not folder):
            raise ValueError(f"checkpoint_folder must be a folder or a URL but got {folder!r}")
