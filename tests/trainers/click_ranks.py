"""What a rank records of the trainer of clicks, for `ranks.py` and the tests' own process."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import torch
import torch.distributed as dist

from autotune.backends.worker.sharded_tensors import encode_shards
from autotune.trial import Change
from trainers import clicks

FAST = {
    "data": "generated",
    "hash_size": 50,
    "train_size": 2000,
    "val_size": 1000,
    "lr": 0.005,
    "lr_sparse": 0.05,
    "batch_size": 64,
    "horizon": 2,
    "milestone": 512,
    "width": 4,
    "hidden": 8,
}


def is_own(config: dict[str, Any]) -> bool:
    """Whether a configuration is that of the trainer of clicks."""
    return config.get("data") in ("generated", "criteo")


def record(
    config: dict[str, Any],
    milestones: int,
    *,
    restore: list[Any] | None = None,
    save_at: int | None = None,
    changes: dict[int, Change] | None = None,
) -> dict[str, Any]:
    """Train for so many milestones after the first: steps, metrics, encoded states, threads left.

    Args:
        restore: what each rank gets as its state, in the form that `encode_shards` gives.
        save_at: the milestone whose state is `saved`; `final` is that of the last one.
        changes: those of a controller, by the number of the milestone.
    """
    before = {*threading.enumerate()}
    rank = dist.get_rank() if dist.is_initialized() else 0
    state = {} if restore is None else {"state": decoded(restore, rank)}
    trainer = clicks.train({**FAST, **config, **state})
    found: dict[str, Any] = {"steps": [], "metrics": []}
    change = None
    try:
        for number in range(milestones + 1):
            milestone = trainer.send(change)
            found["steps"].append(milestone.step)
            found["metrics"].append(milestone.evaluate())
            assert milestone.state is not None
            state = encode_shards(milestone.state())
            if number == save_at:
                found["saved"] = pickle.loads(pickle.dumps(state))
            change = (changes or {}).get(number)
        found["final"] = state
    finally:
        trainer.close()
    found["threads"] = sorted(t.name for t in {*threading.enumerate()} - before)
    return found


def decoded(states: list[Any], rank: int) -> Any:
    """The state of one rank as autotune gives it to a trainer."""
    from autotune.backends.worker.sharded_tensors import assemble

    first = states[min(rank, len(states) - 1)]
    return assemble(first, lambda of, device: on(states[of], device), len(states))


def on(value: Any, device: str) -> Any:
    """A state with its tensors on a device."""
    if isinstance(value, dict):
        return {key: on(v, device) for key, v in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value
