"""The image trainer, whose process that validates is killed once; it notes those processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

from autotune.trial import Change, Milestone
from trainers import image


def train(config: dict[str, Any]) -> Generator[Milestone, Change | None, None]:
    """Train; the first rank's process dies at the step `kill_at`, if the log has no such death."""
    own = dict(config)
    log, kill_at = Path(own.pop("log")), own.pop("kill_at")
    trainer = image.train(own)
    try:
        change = None
        while True:
            milestone = trainer.send(change)
            beside = getattr(milestone.evaluate, "__self__")._beside  # noqa: B009
            if beside is not None:
                _note(log, f"pid {beside._process.pid}")
                if milestone.step >= kill_at and "killed" not in log.read_text():
                    _note(log, "killed")
                    os.kill(beside._process.pid, signal.SIGKILL)
            change = yield milestone
    finally:
        trainer.close()


def _note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")
