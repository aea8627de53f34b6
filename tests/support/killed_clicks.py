"""The trainer of clicks, asynchronous, whose ranks are killed in the middle of steps."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.trial import Milestone
from trainers import clicks
from trainers.sparse.asynchronous import Asynchronous
from trainers.sparse.seam import Step


def train(config: dict[str, Any]) -> Iterator[Milestone]:
    """As `clicks.train`; a rank dies after so many of its steps in each of the first attempts.

    Args:
        config: `log`, a file with a line for each kill; `kills`, their number. The metric `updates`
            is the number of updates that the dense weights have had.
    """
    own = {key: value for key, value in config.items() if key not in ("log", "kills", "steps")}
    log, rank = Path(config["log"]), int(os.environ["RANK"])
    attempt = len(log.read_text().splitlines())
    draw = random.Random(7 * attempt + 1)
    dies, left = draw.randrange(2), draw.randrange(5, config["steps"])
    if attempt < config["kills"] and rank == dies:
        real = Asynchronous.step

        def step(self: Asynchronous, given: Step) -> None:
            nonlocal left
            left -= 1
            real(self, given)
            if not left:
                with log.open("a") as file:
                    file.write(f"rank {rank}\n")
                os.kill(os.getpid(), signal.SIGKILL)

        Asynchronous.step = step  # type: ignore[method-assign]  # the process dies with it
    inner = clicks.train(own)
    try:
        for milestone in inner:
            yield Milestone(milestone.step, lambda m=milestone: _counted(m), milestone.state)
    finally:
        inner.close()


def _counted(milestone: Milestone) -> Mapping[str, float]:
    assert milestone.state is not None
    counts = milestone.state()["dense"]["state"][:, -1]  # of Adam, those of each weight
    assert counts.min() == counts.max()
    found = milestone.evaluate()
    assert isinstance(found, Mapping)
    return {**found, "updates": counts[0].item()}
