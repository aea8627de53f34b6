"""The trainer of clicks, not synchronous, whose ranks are killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from autotune.trial import Milestone
from trainers import clicks
from trainers.sparse.asynchronous import Asynchronous
from trainers.sparse.local import Local

MOMENTS = {"asynchronous": ("message", "any"), "geo_sgd": ("message",), "hogwild": ("any",)}
"""When a rank dies in each of the first attempts: while a message of it is under way, or any time
after the beginning of a step."""
_MESSAGES = ("isend", "all_gather", "all_reduce")
_MOST_SECONDS = 0.05


def log_of(folder: Path, update: str) -> Path:
    """The file with a line for each kill."""
    return folder / f"killed-{update}"


def train(config: dict[str, Any]) -> Iterator[Milestone]:
    """As `clicks.train`; a rank dies in each of the first attempts.

    Args:
        config: `logs`, a folder. The metric `updates` is the number of updates that the dense
            weights have had, of those that have had most.
    """
    own = {key: value for key, value in config.items() if key != "logs"}
    update, rank = config["sparse_update"], int(os.environ["RANK"])
    log = log_of(Path(config["logs"]), update)
    attempt = len(log.read_text().splitlines()) if log.exists() else 0
    draw = random.Random(f"{update} {attempt}")
    if attempt < len(MOMENTS[update]) and rank == draw.randrange(2):

        def die() -> None:
            with log.open("a") as file:
                file.write(f"rank {rank}\n")
            os.kill(os.getpid(), signal.SIGKILL)

        kind = Asynchronous if update == "asynchronous" else Local
        if MOMENTS[update][attempt] == "any":
            _dies_soon_after(draw, kind, die)
        else:
            _dies_in_a_message(draw, kind, die)
    inner = clicks.train(own)
    try:
        for milestone in inner:
            yield Milestone(milestone.step, lambda m=milestone: _counted(m), milestone.state)
    finally:
        inner.close()


def _dies_in_a_message(draw: random.Random, kind: Any, die: Callable[[], None]) -> None:
    """After a number of messages from the first step on; the last one has been begun."""
    left, begin = draw.randrange(1, 60), kind.begin

    def dying(name: str, real: Any) -> Any:
        def send(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left:
                return real(*given, **named)
            real(*given, **named, **({} if name == "isend" else {"async_op": True}))
            return die()

        return send

    def begun(self: Any) -> None:
        kind.begin = begin
        for name in _MESSAGES:  # the process dies with them
            setattr(dist, name, dying(name, getattr(dist, name)))
        begin(self)

    kind.begin = begun


def _dies_soon_after(draw: random.Random, kind: Any, die: Callable[[], None]) -> None:
    """Up to so many seconds after the beginning of a step."""
    left, seconds, step = draw.randrange(1, 25), draw.uniform(0, _MOST_SECONDS), kind.step

    def stepping(self: Any, given: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            threading.Thread(target=lambda: (time.sleep(seconds), die()), daemon=True).start()
        step(self, given)

    kind.step = stepping


def _counted(milestone: Milestone) -> Mapping[str, float]:
    assert milestone.state is not None
    counts = milestone.state()["dense"]["state"][:, -1]  # of Adam, those of each weight
    found = milestone.evaluate()
    assert isinstance(found, Mapping)
    return {**found, "updates": counts.max().item(), "least_updates": counts.min().item()}
