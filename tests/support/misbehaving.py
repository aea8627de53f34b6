"""Trainers that do to their process what no trainer should, as their configuration says."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
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
