"""Trainers that do to their process what no trainer should, as their configuration says."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from toys import METRIC

import autotune as at

_LEAK_BYTES = 800 * 2**20
_LINE = "x" * 1023
_WRITTEN_KIB = 12 * 1024


def misbehaving(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Reaches its target at step 3, and does `what` at step 2."""
    yield at.Milestone(0, dict)
    for step in (1, 2, 3):
        if step == 2:
            _misbehave(config["what"])
        yield at.Milestone(step, lambda s=step: {METRIC: s / 3, "pid": os.getpid()})  # type: ignore[misc]


def _misbehave(what: str) -> None:
    if what == "leave":
        os._exit(7)
    if what == "thread":
        threading.Thread(target=time.sleep, args=(3600,), name="left", daemon=True).start()
    if what == "leak":
        memory = torch.ones(_LEAK_BYTES, dtype=torch.uint8)
        sys.modules["misbehaving_leak"] = memory  # type: ignore[assignment]
    if what == "talk":
        for stream in (sys.stdout, sys.stderr):
            for _ in range(_WRITTEN_KIB):
                print(_LINE, file=stream)


def together(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Ends each milestone at a moment that the trainers of both configurations agree on."""
    yield at.Milestone(0, dict)
    for step in range(1, 11):
        moment = _agreed(Path(config["meet"]), step, config["n"])
        while time.monotonic() < moment:
            pass
        yield at.Milestone(step, lambda s=step, m=moment: {METRIC: s / 10, "moment": m})  # type: ignore[misc]


def _agreed(folder: Path, step: int, own: int) -> float:
    """A moment just after both have come here: the later of the two that they wrote down."""
    part = folder / f"part-{step}-{own}"
    part.write_text(repr(time.monotonic()))
    part.rename(folder / f"at-{step}-{own}")
    both = [folder / f"at-{step}-{n}" for n in range(2)]
    end = time.monotonic() + 600
    while not all(file.exists() for file in both):
        if time.monotonic() > end:
            raise TimeoutError(f"the other is not at step {step}")
        time.sleep(0.001)
    return max(float(file.read_text()) for file in both) + 0.02


# --- what no trainer should yield, return or raise ------------------------------------------------


class Speechless(RuntimeError):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Unpicklable(RuntimeError):
    """Cannot be sent to another process."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def _raises(error: BaseException) -> Callable[[], at.Milestone]:
    def made() -> at.Milestone:
        raise error

    return made


def _deep(depth: int = 0) -> at.Milestone:
    return _deep(depth + 1)


def _loop() -> at.Milestone:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


def _reports(metrics: Any) -> Callable[[], at.Milestone]:
    return lambda: at.Milestone(2, lambda: metrics)


def _saves(state: Any) -> Callable[[], at.Milestone]:
    return lambda: at.Milestone(2, lambda: {METRIC: 0.5}, lambda: state)


FAILING: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "a text": lambda: "milestone",
    "step text": lambda: at.Milestone("2", dict),  # type: ignore[arg-type]
    "step fraction": lambda: at.Milestone(2.5, dict),  # type: ignore[arg-type]
    "step back": lambda: at.Milestone(0, dict),
    "step of 64 bits": lambda: at.Milestone(2**63, dict),
    "step of 5001 digits": lambda: at.Milestone(10**5000, dict),
    "evaluated already": lambda: at.Milestone(2, {METRIC: 0.5}),  # type: ignore[arg-type]
    "seconds": lambda: at.Milestone(2, dict, data_seconds=math.nan),
    "metrics none": _reports(None),
    "metrics list": _reports([0.5]),
    "metrics text": _reports({METRIC: "high"}),
    "metrics huge": _reports({METRIC: 10**400}),
    "metrics tensor": _reports({METRIC: torch.zeros(2)}),
    "raises": _raises(RuntimeError("bad thing")),
    "without text": _raises(Speechless()),
    "not to be pickled": _raises(Unpicklable("bad thing")),
    "no utf-8": _raises(FileNotFoundError(2, "No such file", "caf\udce9.jpg")),
    "control codes": _raises(RuntimeError("\x1b[31mred\x00\r\n\x07")),
    "5 MB": _raises(RuntimeError("x" * 5_000_000)),
    "lines": _raises(ValueError("\n" * 1000)),
    "keyboard": _raises(KeyboardInterrupt()),
    "exit": _raises(SystemExit(3)),
    "generator exit": _raises(GeneratorExit()),
    "stop iteration": _raises(StopIteration(3)),
    "deep": _deep,
    "causes in a loop": _loop,
}
"""What a trial of each name fails by."""
PASSING: dict[str, Callable[[], Any]] = {
    "": _reports({METRIC: 0.5}),
    "numbers as names": _reports({3: 0.5, METRIC: 0.5}),
    "odd names": _reports({"a@b": 1.0, "a#b": 2.0, "caf\udce9": 3.0, "": 4.0, METRIC: 0.5}),
    "not a number": _reports({METRIC: math.nan}),
    "infinite": _reports({METRIC: -math.inf}),
    "many": _reports({METRIC: 0.5, **{f"m{n}": float(n) for n in range(1000)}}),
    "no state": _saves(None),
}
"""What is odd, and no failure: such a trial reaches its target."""


def wrong(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Does at step 2 what its configuration says, and reaches its target at step 3."""
    yield at.Milestone(0, dict)
    yield {**FAILING, **PASSING}[config["what"]]()
    yield at.Milestone(3, lambda: {METRIC: 1.0})


def study(
    train: Any, folder: Path, configs: list[dict[str, Any]], pool: Any = None, **scaling: Any
) -> at.StudyResult:
    """One trial for each configuration, in their order."""
    names = sorted({name for config in configs for name in config})
    space = at.SearchSpace({n: at.Choice([*dict.fromkeys(c[n] for c in configs)]) for n in names})
    experiment = at.Experiment(
        "bad",
        train,
        space,
        at.Target(METRIC, 0.95, limit=6000),
        configs=configs,
        failure=at.FailurePolicy(hang_timeout=600, max_retries=1, max_consecutive_failed_trials=9),
        scaling=at.Scaling(**{"max_concurrent_trials": 1, **scaling}),
    )
    return at.run(
        experiment, trials=len(configs), out=folder, sampler="random", pruner="none",
        tracking_uri="off", pool=pool,
    )  # fmt: skip
