"""A trainer of two ranks whose state is as large as asked, and who says what it found."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from toys import METRIC, note

import autotune as at


def saver(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Counts steps in every one of `numbers` weights; rank 1 dies once, at step `dies`."""
    state = config.get("state") or {"step": 0, "w": torch.zeros(config.get("numbers", 10))}
    step, weights = state["step"], state["w"]
    assert bool((weights == step).all()), "the state is of one step"
    note(config, f"start {step}")

    def milestone() -> at.Milestone:
        found = {METRIC: step / 1000, "w": float(weights.mean())}
        return at.Milestone(step, lambda: found, lambda: {"step": step, "w": weights})

    yield milestone()
    while True:
        time.sleep(config.get("nap", 0.02))
        step += 100
        weights += 100  # in place: what is being written must not change with it
        dist.all_reduce(torch.ones(1))
        unmount(config, step)
        if step == config.get("dies") and dist.get_rank() == 1:
            died = Path(f"{config['log']}.died")
            if not died.exists():
                died.write_text("once")
                harm(config)
                vanish(config)
                os.kill(os.getpid(), signal.SIGKILL)
        yield milestone()


def unmount(config: dict[str, Any], step: int) -> None:
    """Once, at step 300, a mount goes away, which leaves its empty mount point behind."""
    if "unmounts" not in config or step != 300 or dist.get_rank() != 1:
        return
    mount, away = config["unmounts"]
    if not Path(f"{mount}-point").exists():
        os.rename(mount, away)
        os.mkdir(mount)


def vanish(config: dict[str, Any]) -> None:
    """Put the store of the checkpoints out of reach, as it is; or have its mount back."""
    if "unmounts" in config:
        mount, away = config["unmounts"]
        os.rename(mount, f"{mount}-point")  # a mount hides what lies in its mount point
        os.rename(away, mount)
    if "kills" in config:
        os.kill(config["kills"], signal.SIGKILL)
    if "moves" in config:
        os.rename(*config["moves"])


def harm(config: dict[str, Any]) -> None:
    """Damage the newest checkpoints before dying: one is not yet written down, the next is."""
    how, count = config.get("damage") or ("", 0)
    folder = Path(config["checkpoints"])
    steps = sorted(folder.glob("**/step-*/rank-1.pt"), key=lambda f: int(f.parent.name[5:]))
    for file in steps[len(steps) - count :]:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        if how == "cut":
            data = data[: len(data) // 2]
        file.unlink()  # others may hold links to it
        if how != "gone":
            file.write_bytes(data)
