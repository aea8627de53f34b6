"""A study on its own Ray, until a file `enough` exists: `monitored_study.py FOLDER`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import autotune as at


def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """The first trial reaches the target at once; the others wait for the file `enough`."""
    until = time.monotonic() + 120
    yield at.Milestone(0, lambda: {"val_accuracy": 0.0})
    if not config["first"]:
        while not Path(config["enough"]).exists() and time.monotonic() < until:
            time.sleep(0.3)
            yield at.Milestone(int(1e6 * time.monotonic()), lambda: {"val_accuracy": 0.5})
    yield at.Milestone(int(2e6 * time.monotonic()), lambda: {"val_accuracy": 1.0})


def main(folder: Path) -> None:
    entries = {
        "rate": at.Float(0, 1),
        "first": at.Choice([True, False]),
        "enough": at.Fixed(str(folder.absolute() / "enough")),
    }
    given = [{"rate": 0.5, "first": first} for first in (True, False)]
    result = at.run(
        at.Experiment(
            "monitored",
            train,
            at.SearchSpace(entries),
            at.Target("val_accuracy", 0.9, limit=200),
            baseline=given[0],
            configs=given[1:],
            scaling=at.Scaling(max_concurrent_trials=1),
        ),
        trials=2,
        sampler="random",
        pruner="none",
        out=folder,
        backend="ray",
    )
    assert result.best is not None
    print(result.ended)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
