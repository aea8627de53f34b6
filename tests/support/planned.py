"""A simulated study whose searched plan changes only the seconds per sample, by known factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.space.search_space import Choice, Float, SearchSpace
from autotune.trial.scaling import Scaling

METRIC = "val_accuracy"
EFFECTS = {
    "rate": "statistical",
    "batch_size": "both",
    "fused": "exact",
    "precision": "rounding",
    "shard_degree": "exact",
    "prefetch": "exact",
}
SPACE = SearchSpace(
    {
        "rate": Float(0.5, 2.0),
        "batch_size": Choice((16, 32)),
        "fused": Choice((False, True)),
        "precision": Choice(("fp32", "bf16", "fp16")),
        "shard_degree": Choice((1, 2)),
        "prefetch": Choice((1, 2), when={"shard_degree": (2,)}),
    }
)
KNOBS = ("precision", "fused", "shard_degree", "prefetch")
BASELINE = {
    "rate": 1.0,
    "batch_size": 32,
    "fused": False,
    "precision": "fp32",
    "shard_degree": 1,
}


def train(config: dict[str, Any]) -> Any:
    """Stands for a trainer, which is not run."""


def check(config: Mapping[str, Any]) -> None:
    """Refuses what is fused in parts."""
    if config.get("fused") and config.get("shard_degree") == 2:
        raise ValueError("fused True needs shard_degree 1, got 2")


train.effects = EFFECTS  # type: ignore[attr-defined]
train.plan_keys = {"shard_degree": 1, "copies_degree": -1}  # type: ignore[attr-defined]
train.check = check  # type: ignore[attr-defined]

Speeds = Mapping[tuple[str, Any], float]
TWICE: Speeds = {("fused", True): 2.0, ("precision", "bf16"): 1.3, ("precision", "fp16"): 0.11}


def curve(
    speeds: Speeds = TWICE,
    noise: float = 0.02,
    ends: Mapping[tuple[str, Any], str] | None = None,
) -> Callable[[Mapping[str, Any], int], SimCurve]:
    """The curve of a configuration: 64 samples in 0.2 s, less where values are faster.

    Args:
        noise: the standard deviation of the logarithm of a block's seconds.
        ends: how trials with a value end after their set-up.
    """

    def made(config: Mapping[str, Any], seed: int) -> SimCurve:
        at = [(name, value) for name, value in config.items() if (name, value) in speeds]
        speed = math.prod(speeds[pair] for pair in at)
        random = Random(f"{seed}/{sorted(map(str, config.items()))}")
        seconds, points = 0.0, [SimPoint(0, 0.0, {})]
        for i in range(1, 130):
            seconds += 0.2 / speed * math.exp(random.gauss(0, noise))
            points.append(SimPoint(i * 64, seconds, {METRIC: min(config["rate"] * i / 60, 1)}))
        broken = next((end for (k, v), end in (ends or {}).items() if config.get(k) == v), "")
        if broken:
            return SimCurve(points[:1], end=broken, setup_seconds=0.5)
        return SimCurve(points, setup_seconds=0.5)

    return made


def experiment(**options: Any) -> at.Experiment:
    """The search over `SPACE` on two ranks; a trial takes at most 100 s."""
    target = options.pop("target", None) or at.Target(METRIC, 0.95, limit=100)
    own = {"baseline": BASELINE, "scaling": Scaling(num_workers=2), **options}
    return at.Experiment("planned", train, SPACE, target, **own)


def study(
    folder: Path,
    trials: int = 6,
    curve: Callable[..., SimCurve] | None = None,
    experiment: at.Experiment | None = None,
    **options: Any,
) -> at.StudyResult:
    """Run it on a virtual clock."""
    usual = {"sampler": "random", "pruner": "none", "tracking_uri": "off", "racing": 0}
    pool = options.pop("pool", None) or SimPool(curve or globals()["curve"](), 2)
    made = experiment or globals()["experiment"]()
    return at.run(made, trials=trials, out=folder, pool=pool, **{**usual, **options})
