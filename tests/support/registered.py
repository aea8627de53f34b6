"""Recipes whose best model is to be registered: two ranks, digits, a target soon reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import autotune as at
from trainers.image import train

KNOWN = {
    **{name: at.Fixed(value) for name, value in {"data": "digits", "model": "resnet8"}.items()},
    "width": at.Fixed(4),
    "quantization": at.Fixed("post_training"),
    "milestone": at.Fixed(1000),
    "horizon": at.Fixed(8),
}
SPACE = at.SearchSpace({**KNOWN, "lr": at.ScheduleSpace(at.Float(0.2, 0.3), family="cosine")})
TARGET = at.Target("val_accuracy", 0.6, limit=60)


def digits() -> at.Experiment:
    """Batch normalisation on two ranks: each has running statistics of its own."""
    return at.Experiment("registered", train, SPACE, TARGET, scaling=at.Scaling(num_workers=2))


def line(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """A trainer of a user's own: y = slope * x, whose slope grows."""
    model = torch.nn.Linear(1, 1, bias=False)
    for step in range(100):
        with torch.no_grad():
            model.weight.fill_(step * config["speed"])
        slope = float(model.weight)
        yield at.Milestone(
            step,
            lambda slope=slope: {"slope": slope},
            lambda: {"weights": dict(model.state_dict())},
        )


def line_model(config: dict[str, Any], states: list[dict[str, Any]]) -> Any:
    model = torch.nn.Linear(1, 1, bias=False)
    model.load_state_dict(states[0]["weights"])
    return model, torch.zeros(3, 1)


line.model = line_model  # type: ignore[attr-defined]


def lines() -> at.Experiment:
    space = at.SearchSpace({"speed": at.Float(0.05, 0.5)})
    target = at.Target("slope", 1.0, limit=30)
    return at.Experiment("lines", line, space, target, baseline={"speed": 0.05})


def never() -> at.Experiment:
    space = at.SearchSpace({"speed": at.Float(0.05, 0.5)})
    return at.Experiment("never", line, space, at.Target("slope", 1e6, limit=0.05))
