"""What a framework's callback keeps from one evaluation to the next, whatever the framework."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.integrations import training
from autotune.reporting import evaluating


class Kept:
    """Which evaluations and metrics are reported, the pause of the clock, and what was restored.

    Args:
        config: the trial's configuration; one that goes on holds what the callback saved.
        metrics: the names to report, as a list or as `{our name: the framework's}`; all if None.
        every: report at every so manieth evaluation, at least 1.
        write: writes what was saved into a folder, for the framework to read it from the path that
            is returned.

    Raises:
        UserError: `metrics` or `every` is none of that.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        metrics: training.Names,
        every: int,
        write: Callable[[Path, Mapping[str, Any]], Path],
    ) -> None:
        self.names = training.named(metrics)
        self.restored: Mapping[str, Any] | None = config.get("state")
        self._every = training.check_every(every)
        self._write = write
        self._evaluations = 0
        self._pause = contextlib.ExitStack()
        self._paused = False
        self._place: tuple[tempfile.TemporaryDirectory[str], Path] | None = None

    @property
    def checkpoint(self) -> str | None:
        """Where the framework finds what the trial goes on from; None if the trial is new."""
        if self.restored is None:
            return None
        if self._place is None:
            folder = tempfile.TemporaryDirectory(prefix="autotune-checkpoint-")
            self._place = folder, self._write(Path(folder.name), self.restored)
        return str(self._place[1])

    def clean(self) -> None:
        """Remove what was written for the framework."""
        if self._place is not None:
            self._place[0].cleanup()
            self._place = None

    def counted(self) -> bool:
        """Count an evaluation; whether it is one of those to report."""
        self._evaluations += 1
        return self._evaluations % self._every == 0

    def pause(self) -> None:
        """Stop the training clock, if it has not been stopped."""
        if not self._paused:
            self._pause.enter_context(evaluating())
            self._paused = True

    def go_on(self) -> None:
        """Let the training clock go on."""
        self._pause.close()
        self._paused = False
