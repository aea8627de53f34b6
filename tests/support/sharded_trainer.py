"""A trainer of two ranks with a sharded model, and one that dies once in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from saver import harm

import autotune as at
from trainers import language

OWN = ("log", "dies", "checkpoints", "damage")
TEXT = {
    "text": "synthetic",
    "sharding": "full",
    "optimizer": "adamw",
    "lr": 3e-3,
    "batch_size": 8,
    "milestone": 512,
    "layers": 1,
    "width": 16,
    "heads": 2,
    "sequence_length": 32,
    "train_size": 9000,
    "val_size": 1000,
}


def sharded(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """`trainers.language`, whose rank 1 dies at its milestone `dies`, once; says where it began."""
    inner = language.train({**TEXT, **{k: v for k, v in config.items() if k not in (*OWN, "x")}})
    change = None
    try:
        for number in range(10**6):
            milestone = inner.send(change)
            if number == 0 and dist.get_rank() == 0:
                with open(config["log"], "a") as log:
                    log.write(f"start {milestone.step}\n")
            if milestone.step == config.get("dies") and dist.get_rank() == 1:
                died = Path(f"{config['log']}.died")
                if not died.exists():
                    died.write_text("once")
                    harm(config)
                    os.kill(os.getpid(), signal.SIGKILL)
            change = yield replace(milestone, evaluate=evaluated(milestone))
    except StopIteration:
        return
    finally:
        inner.close()


def evaluated(milestone: at.Milestone) -> Any:
    """What `milestone` measures, and its step as what is aimed at."""
    return lambda: {**milestone.evaluate(), "val_accuracy": milestone.step / 10240}
