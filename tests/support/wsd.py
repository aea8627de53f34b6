"""A space of trapezoids that begin alike, and a simulated training that depends on nothing later.

The learning rate drives what is learned, and noise, which falls only with the rate: so the accuracy
comes late, as in warm-up, stable phase and decay (WSD).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint
from autotune.space.search_space import Choice, Fixed, Float, ScheduleSpace, SearchSpace

METRIC = "val_accuracy"
STEPS, SAMPLES, SECONDS = 100, 64, 0.1  # milestones, and samples and seconds from one to the next
SPACE = SearchSpace(
    {
        "lr": ScheduleSpace(
            1.0,
            family="wsd",
            final=Float(0.0, 0.1),
            warmup=0.05,
            decay=Float(0.05, 0.5, log=True),
        ),
        "width": Choice((16, 32)),
        "horizon": Fixed(20.0),
    }
)


def train(config: dict[str, Any]) -> Any:
    """Stands for a trainer where none is run."""
    yield from ()


def wsd(space: SearchSpace = SPACE, **options: Any) -> at.Experiment:
    """The study of the space."""
    target = options.pop("target", None) or at.Target(METRIC, 0.9, limit=STEPS * SECONDS + 1)
    return at.Experiment("wsd", train, space, target, **options)


def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
    """One training: each milestone's metrics follow from the rates before it, and from the seed."""
    random, learned, noise = Random(seed), 0.0, 0.5
    speed = 0.03 if config["width"] == 32 else 0.025
    points = [SimPoint(0, 0.0, {"progress": 0.0})]
    for i in range(1, STEPS + 1):
        rate = config["lr"]((i - 1) / STEPS)
        learned += speed * rate * (1.0 + 0.1 * random.gauss(0, 1))
        noise += 0.3 * (0.5 * rate - noise)
        accuracy = min(learned, 1.0) * (1.0 - noise)
        points.append(SimPoint(SAMPLES * i, SECONDS * i, {METRIC: accuracy, "progress": i / STEPS}))
    return SimCurve(points)


def learn(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Trains one number for `STEPS` milestones, whose metrics follow from all rates before."""
    state = config.get("state") or {"step": 0, "weight": 0.0}
    step, weight = state["step"], state["weight"]

    def milestone(i: int) -> at.Milestone:
        metrics = {METRIC: weight, "progress": i / STEPS}
        own = {"step": i, "weight": weight}
        return at.Milestone(SAMPLES * i, lambda: metrics, lambda: own)

    yield milestone(step)
    for i in range(step + 1, STEPS + 1):
        noise = Random(f"{config['seed']}/{i}").gauss(0, 1)
        weight += 0.01 * config["lr"]((i - 1) / STEPS) * (1.0 + 0.1 * noise)
        weight *= 1.0 if config["width"] == 32 else 0.99
        yield milestone(i)
