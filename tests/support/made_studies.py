"""Studies made of values: no pool, no disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.schedules import Cosine
from autotune.study.result import StudyResult
from autotune.trial import Clock, Hardware, Report, State, Target, Trial

HARDWARE = Hardware("cpu", 2, 1.0)
TARGET = Target("val_accuracy", 0.9, limit=50.0)


def trial(number: int, seconds: float, state: State = State.REACHED, **more: Any) -> Trial:
    """A trial that ended after `seconds` with a report each fifth of them; 10 samples a second."""
    point: Mapping[str, Any] = more.pop("point", {"lr": 0.1, "batch_size": 32})
    end = 0.92 if state is State.REACHED else 0.5
    reports = tuple(
        Report(
            round(10 * seconds * i / 5),
            seconds * i / 5,
            {
                TARGET.metric: end * i / 5,
                "lr": 0.1 - i / 100,
                "batch_size": 32.0,
                "progress": i / 5,
            },
            Clock(setup=1.0, train=seconds * i / 5, eval=0.1 * i),
        )
        for i in range(6)
    )
    known = {
        "config": {**point, "schedule": Cosine(0.4, 0.0)},
        "params": point,
        "reason": "target" if state is State.REACHED else "capped",
        "attempts": 1,
        "spent_seconds": seconds + 2,
        "ended_at": 100.0 * number + seconds + 2,
        "hardware": HARDWARE,
        **more,
    }
    of = known.pop("repeats", None)
    made = Trial(number, state=state, seconds=seconds, reports=reports, **known)
    if of is not None:
        object.__setattr__(made, "repeats", of)
    return made


def study(*trials: Trial, ended: str = "done") -> StudyResult:
    return StudyResult(Path("nowhere/toy"), TARGET, trials, ended)


def confirmed() -> StudyResult:
    """A baseline of 20 s, a winner of 5 s that takes 8 s again, and one that was stopped."""
    again = [
        trial(4, 7.0, kind="confirm", repeats=1),
        trial(5, 19.0, kind="confirm", repeats=0),
        trial(6, 8.0, kind="confirm", repeats=1),
        trial(7, 21.0, kind="confirm", repeats=0),
        trial(8, 10.0, kind="confirm", repeats=1),
        trial(9, 24.0, kind="confirm", repeats=0),
    ]
    own = [
        trial(0, 20.0, kind="baseline"),
        trial(1, 5.0),
        trial(2, 4.0, State.CENSORED),
        trial(3, 6.0),
    ]
    return study(*own, *again)


def many(count: int, seed: int = 0) -> StudyResult:
    """A search in which `lr` decides about the time, on a log scale, and nothing else does."""
    rng = np.random.default_rng(seed)
    trials = []
    for number in range(count):
        lr = float(10 ** rng.uniform(-4, 0))
        point = {
            "lr": lr,
            "noise": float(rng.uniform()),
            "kind": str(rng.choice(["a", "b"])),
            "size": int(2 ** rng.integers(4, 9)),
        }
        seconds = float(3 + 4 * (np.log10(lr) + 1) ** 2 + rng.uniform())
        late = seconds > 12
        state = State.CENSORED if late else State.REACHED
        trials.append(trial(number, min(seconds, 12.0), state, point=point))
    return study(*trials)


def failed(number: int) -> Trial:
    return replace(trial(number, 1.0, State.FAILED), reports=(), reason="error", error="boom")
