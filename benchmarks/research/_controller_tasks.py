"""Three small trainings, one study for each seed, whose seconds are epochs on a virtual clock."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from _live import live

import autotune as at
from autotune.algorithms.controllers import regulator, weights_file
from autotune.algorithms.controllers.linear import Linear, policy
from autotune.backends.simulator import SimPool
from autotune.trial import State, Trial
from trainers import image, language

TEXT = "tinyshakespeare/input.txt"
WIDE = 30.0  # the searched learning rates are up to so many times the right one, and over it


@dataclass(frozen=True)
class Task:
    """A training with the best constant learning rate of a coarse grid.

    Args:
        epoch: its samples.
    """

    train: Callable[..., Any]
    setting: Mapping[str, Any]
    target: at.Target
    lr: float
    epoch: int


class Outcome(NamedTuple):
    """Of a study: epochs until its first trial reached the target, or the limit; steps of it."""

    epochs: float
    steps: float
    reached: bool
    trials: int


_DIGITS = {"data": "digits", "batch_size": 64, "momentum": 0.9, "milestone": 128, "horizon": 12}
_WORDS = {"layers": 1, "width": 48, "heads": 2, "sequence_length": 32, "batch_size": 16}


def tasks(data: Path | None) -> dict[str, Task]:
    """Those that need no data, and characters if their text is there."""
    found = {
        "mlp": Task(
            image.train,
            {**_DIGITS, "model": "mlp", "width": 64},
            at.Target("val_accuracy", 0.97, limit=12.0),
            0.05,
            1078,
        ),
        "convnet": Task(
            image.train,
            {**_DIGITS, "model": "resnet8", "width": 4, "norm": "group"},
            at.Target("val_accuracy", 0.9, limit=12.0),
            0.3,
            1078,
        ),
    }
    if data is not None and (data / TEXT).is_file():
        setting = {"text": str(data / TEXT), "train_size": 60_000, "val_size": 4000, **_WORDS}
        setting |= {"optimizer": "adamw", "milestone": 2560, "horizon": 3}
        target = at.Target("val_loss", 2.5, mode="min", limit=3.0)
        found["gpt"] = Task(language.train, setting, target, 0.003, 60_000)
    return found


class Once:
    """A sampler of one point."""

    def __init__(self, point: Mapping[str, Any]) -> None:
        self._point = point

    def ask(self, number: int, trials: Sequence[Trial]) -> Mapping[str, Any] | None:
        return None if trials else self._point


Row = tuple[Any, Mapping[str, Any]]
"""A controller, and what it changes of the setting; `lr_factor` is one of the learning rate."""

NOISE = {"noise_scale_every": 2}
"""What the controller `noise_scale` needs: the trainer measures it at every second step."""


def steered() -> dict[str, Row]:
    """Controllers of learning rates, and the ramp of the batch, which raises them with it."""
    return {
        "constant": (None, {}),
        "regulator": (regulator(), {}),
        "policy, trained": (shipped(), {}),
        "autolrs": ("autolrs", {}),
        "noise_scale": ("noise_scale", NOISE),
    }


def batches(task: Task) -> dict[str, Row]:
    """Larger batches, from the start or grown, and rules for their learning rates."""
    first = int(task.setting["batch_size"])
    large = {"batch_size": 4 * first}
    found: dict[str, Row] = {
        "batch b": (None, {}),
        "batch 4 b, same rate": (None, large),
        "batch 4 b, sqrt": (None, {**large, "lr_factor": 2.0}),
        "batch 4 b, linear": (None, {**large, "lr_factor": 4.0}),
    }
    for share in (1.0, 4.0):
        ramp = f"noise_scale(share={share:g})"
        found[ramp] = (ramp, NOISE)
    if task.setting.get("optimizer", "sgd") == "sgd":
        found["batch 4 b, AdaScale"] = (None, {**large, "adascale_batch_size": first})
    return found


def outcome(task: Task, lr: float, seed: int, controller: Any = None, **changed: Any) -> Outcome:
    """A study that begins with one trial; what is explored is on its clock."""
    fixed = {k: at.Fixed(v) for k, v in {**task.setting, **changed}.items()}
    searched = at.Float(task.lr / WIDE, task.lr * WIDE, log=True)
    space = at.SearchSpace({**fixed, "lr": searched})
    knobs = ("lr", "batch_size", "momentum")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        result = at.run(
            at.Experiment("task", task.train, space, task.target, knobs=knobs),
            trials=500,
            sampler=Once({"lr": lr}),
            controller=controller,
            pruner="none",
            seed=seed,
            out=folder,
            time_limit=task.target.limit,
            stages="off",
            progress=False,
            pool=SimPool(partial(live, task.train, epoch=task.epoch), 1),
        )
    reached = [t for t in result.trials if t.state is State.REACHED]
    limit = float(task.target.limit or 0.0)
    first = min(reached, key=lambda t: t.ended_at or limit, default=None)
    epochs = limit if first is None else float(first.ended_at or limit)
    steps = _steps(first or result.trials[-1], task)
    return Outcome(round(epochs, 4), round(steps), first is not None, len(result.trials))


def _steps(trial: Trial, task: Task) -> float:
    """The optimizer's steps of a trial: its samples over the batch sizes that it had."""
    size = task.setting.get("sequence_length", 1)
    found, last = 0.0, 0
    batch = float(trial.config["batch_size"])
    for report in trial.reports:
        found += (report.step - last) / (size * batch)
        last, batch = report.step, report.metrics.get("batch_size", batch)
    return found


def shipped() -> Linear:
    """The package's trained policy as it is: it learns nothing more, and has no noise."""
    saved = weights_file.shipped()
    start = policy("robust")
    return Linear(saved.weights, knobs=("lr",), every=start.every, warmup=start.warmup)
