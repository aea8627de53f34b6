"""The trainer of texts; one of two ranks is killed once, between two milestones."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from autotune.trial import Milestone
from trainers import language

KILLED_AFTER = 3
"""The number of the last milestone before the rank dies."""


def train(config: dict[str, Any]) -> Iterator[Milestone]:
    """As `language.train`; the metric `weights` differs with any bit of the model that is saved.

    Args:
        config: `killed`, whether the second rank dies once, and `log`, a file that then gets a
            line for its death, and one for its return from a checkpoint.
    """
    own = dict(config)
    log, killed = Path(own.pop("log")), own.pop("killed")
    second, begins = os.environ["RANK"] == "1", "state" not in own
    if second and not begins:
        _note(log, f"resumed {own['state']['seen']}")
    inner = language.train(own)
    try:
        for number, milestone in enumerate(inner):
            if killed and second and begins and number == KILLED_AFTER:
                _dies_soon(getattr(milestone.evaluate, "__self__")._learner, log)  # noqa: B009
            yield Milestone(milestone.step, lambda m=milestone: _evaluated(m), milestone.state)
    finally:
        inner.close()


def _dies_soon(learner: Any, log: Path) -> None:
    """Have this process die as it begins the second step from here."""
    step, left = learner.step, 2

    def stepping(*given: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            _note(log, "killed")
            os.kill(os.getpid(), signal.SIGKILL)
        step(*given)

    learner.step = stepping


def _evaluated(milestone: Milestone) -> Mapping[str, float]:
    found = milestone.evaluate()
    assert isinstance(found, Mapping)
    assert milestone.state is not None
    weights = milestone.state()["learner"]["model"].values()
    digest = sha256(b"".join(weight.detach().numpy().tobytes() for weight in weights)).digest()
    return {**found, "weights": float(int.from_bytes(digest[:6]))}  # a float has 53 bits


def _note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")
