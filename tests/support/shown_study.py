"""A study as events at given times, for tests of what shows it; run in a terminal it shows itself.

It then stops at each stage until it gets a line, after setting the terminal's title to the stage.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import autotune as at
from autotune.schedules import Cosine
from autotune.study.display import shown
from autotune.study.display.picture import Picture
from autotune.study.options import StudyOptions, Watch
from autotune.trial import (
    Ended,
    Event,
    Hardware,
    Interrupted,
    Report,
    Reported,
    Started,
    Suggested,
    Trial,
    after,
)

METRIC, ON = "val_accuracy", Hardware("cpu", 2, 1.0)
START = 12.0  # seconds until Ray has started
TRACEBACK = """Traceback (most recent call last):
  File "digits.py", line 31, in train
    loss.backward()
RuntimeError: one of the variables needed for gradient computation has been modified in place"""
ON_RANK_1 = f"rank 1:\n{TRACEBACK}\n\nrank 0: raised nothing"
REASON = TRACEBACK.splitlines()[-1]


def train(config: dict[str, Any]) -> Any:
    """Stands for a trainer where none is run."""


def experiment(metric: str = METRIC, **target: Any) -> at.Experiment:
    space = at.SearchSpace({"lr": at.Float(0.01, 1.0, log=True), "momentum": at.Float(0.5, 0.99)})
    goal = {"value": 0.97, "limit": 60, **target}
    return at.Experiment("digits", train, space, at.Target(metric, **goal))


def started(number: int, seconds: float, kind: str = "trial", **more: Any) -> list[Event]:
    """A trial that starts at a time."""
    point = {"lr": 0.1 * (number + 1), "momentum": 0.9}
    config = {
        "lr": Cosine(point["lr"], 0.0),
        "batch_size": 64,
        "momentum": 0.9,
        "optimizer": "sgd",
    }
    names = dict.fromkeys(config)
    made = Suggested(number, config, names, kind, number, seconds, **more)
    return [made, Started(number, 0.0, ON, seconds)]


def reported(number: int, at_: float, seconds: float, value: float) -> Event:
    return Reported(number, Report(round(100 * seconds), seconds, {METRIC: value}), at_)


def ended(number: int, at_: float, state: str, reason: str, seconds: float, **more: Any) -> Event:
    return Ended(number, at.State(state), reason, seconds, at=at_, **more)


def first_half() -> list[Event]:
    """Seven trials: two reached the target, one was stopped, one failed, three run."""
    return [
        *started(0, 0.0, "baseline"),
        *started(1, 0.5),
        reported(0, 20.0, 18.0, 0.951),
        reported(1, 22.0, 19.5, 0.9312),
        reported(0, 40.0, 37.25, 0.9712),
        ended(0, 40.0, "REACHED", "target", 37.25),
        *started(2, 40.5),
        ended(1, 43.0, "CENSORED", "capped", 38.0),
        *started(3, 43.5),
        reported(2, 60.0, 17.0, 0.9734),
        ended(2, 60.0, "REACHED", "target", 17.0),
        *started(4, 60.5),
        ended(3, 61.0, "FAILED", REASON, 0.0, error=ON_RANK_1),
        *started(5, 61.5),
        Interrupted(4, "worker died: rank 0 (pid 71 on node-3)", at=70.0),
        Started(4, 0.0, ON, 71.0),
        reported(5, 75.0, 11.5, 0.8813),
        *started(6, 76.0, "race", repeats=2),
    ]


def second_half() -> list[Event]:
    return [
        reported(4, 80.0, 8.0, 0.9701),
        ended(4, 80.0, "REACHED", "target", 8.0),
        ended(5, 81.0, "CENSORED", "capped", 17.0),
        reported(6, 92.0, 16.0, 0.9722),
        ended(6, 92.0, "REACHED", "target", 16.0),
    ]


class Script:
    """Plays events, with the clock at their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.trials: dict[int, Trial] = {}

    def clock(self) -> float:
        return self.now

    def play(self, watch: Watch, events: Sequence[Event], more: float = 0.0) -> None:
        """All events, and then some seconds more."""
        for event in events:
            self.now = START + event.at
            self.trials[event.trial] = after(self.trials.get(event.trial), event)
            watch(event, self.trials)
        self.now += more


def main() -> None:
    shown._PER_SECOND = 50
    script, drawn = Script(), [0]
    draw = Picture.__rich_console__
    whole: list[threading.RLock] = [threading.RLock()]  # held from a drawing's start to its flush

    def counted(picture: Picture, console: Any, options: Any) -> Any:
        drawn[0] += 1
        whole[0] = console._whole
        return draw(picture, console, options)

    Picture.__rich_console__ = counted  # type: ignore[method-assign]

    def stage(name: str, draws: int = 5) -> None:
        before = drawn[0]
        while drawn[0] < before + draws:
            time.sleep(0.01)
        with whole[0]:  # a drawing is several writes: the title must not get between them
            os.write(2, f"\x1b]0;{name}\x07".encode())
        sys.stdin.readline()

    options = StudyOptions(trials=12)
    with shown.shown(experiment(), options, False, script.clock) as display:
        display.starts("starting Ray")
        script.now = START
        stage("starting")
        assert display.watch is not None
        script.play(display.watch, first_half(), 2.0)
        print("a line of the user's own", flush=True)
        stage("running")
        script.play(display.watch, second_half())
        display.ends("ending workers")
        script.now += 3.0
        stage("ending")
    stage("over", 0)


if __name__ == "__main__":
    main()
