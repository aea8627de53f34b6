"""The regulator on a real problem: digits with the real trainer, on a virtual clock of epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import autotune as at
from autotune.backends.simulator import Live, SimPoint, SimPool
from autotune.evaluation.export.replay import SamePoint
from autotune.trial import State
from trainers.image import train

EPOCH = 1437


def live(config: Any, seed: int) -> Live:
    running, change = train({**config, "seed": seed}), None
    try:
        while True:
            milestone = running.send(change)
            metrics = dict(milestone.evaluate()) if milestone.step else {}
            change = yield SimPoint(milestone.step, milestone.step / EPOCH, metrics)
    finally:
        running.close()


def ends(lr: float, folder: Path, controller: str) -> list[State]:
    config = {"data": "digits", "model": "mlp", "width": 64, "batch_size": 64, "horizon": 12}
    config |= {"momentum": 0.9, "milestone": EPOCH // 4, "lr": lr}
    space = at.SearchSpace({name: at.Fixed(value) for name, value in config.items()})
    target = at.Target("val_accuracy", 0.96, limit=12.0)
    experiment = at.Experiment("digits", train, space, target)
    pool = SimPool(live, 1)
    options: dict[str, Any] = {"sampler": SamePoint(), "pruner": "none", "seed": 900}
    result = at.run(experiment, trials=3, pool=pool, out=folder, controller=controller, **options)
    return [t.state for t in result.trials]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [0.1, 10.0])
def test_the_regulator_puts_a_tenfold_mistake_right(wrong: float, fast_path: Path) -> None:
    torch.set_num_threads(1)
    lr = 0.05 * wrong
    assert ends(lr, fast_path / "a", "none") == [State.CENSORED] * 3
    assert ends(lr, fast_path / "b", "regulator") == [State.REACHED] * 3
