"""A simulated training that reacts to its learning rate, on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

import autotune as at
from autotune.backends.simulator import Live, SimPoint
from autotune.space.search_space import Fixed, SearchSpace

METRIC = "val_accuracy"
BEST = 0.1  # of the learning rates at the start; it falls as training goes on


def train_live(config: Mapping[str, Any], seed: int) -> Live:
    """What is left of the loss shrinks fastest at a learning rate that falls with it.

    Far too high a rate makes it grow. Momentum and batch size are reported and set, and do nothing.
    """
    random = Random(seed)
    left, lr, batch, momentum = 1.0, float(config["lr"]), 64.0, 0.9
    for second in range(400):
        metrics = {
            METRIC: 1 - left,
            "train_loss": left,
            "val_loss": 1.2 * left,
            "lr": lr,
            "batch_size": batch,
            "momentum": momentum,
            "progress": second / 40,
            "grad_norm": 1.0,
            "grad_norm_spread": 0.3 * random.random(),
            "weight_norm": 25.0,
            "update_ratio": lr / 10,
            "gradient_variance": 1.0,
            "gradient_noise_scale": 32.0 * 2 ** (second / 4),
        }
        change = yield SimPoint(second, float(second), metrics if second else {})
        if change is not None:
            lr *= change.lr_factor
            batch = batch if change.batch_size is None else float(change.batch_size)
            momentum = momentum if change.momentum is None else change.momentum
        off = math.log(lr / (BEST * left**0.5))
        speed = 1 - off**2 / 2 if off > 0 else math.exp(-(off**2) / 2)
        left *= math.exp(-0.25 * speed + 0.05 * random.gauss(0, 1))
        left = min(left, 50.0)


def problem(lr: float | None = 0.1, **options: Any) -> at.Experiment:
    """One configuration, or a space of learning rates for None; a target that takes 20 seconds."""
    entry = Fixed(lr) if lr is not None else at.Float(0.01, 1.0, log=True)
    target = at.Target(METRIC, 0.97, limit=40.0)
    space = SearchSpace({"lr": entry})
    return at.Experiment("steered", lambda config: None, space, target, **options)
