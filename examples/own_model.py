"""A trainer and a recipe of one's own: `autotune run examples/own_model.py:recipe --trials 8`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import autotune as at


def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Fit a noisy sine; `step` counts samples, and the schedule's horizon is 20,000 of them."""
    torch.manual_seed(config["seed"])
    x = torch.linspace(-3, 3, 2048).unsqueeze(1)
    y = torch.sin(2 * x) + 0.05 * torch.randn_like(x)
    model = nn.Sequential(nn.Linear(1, config["width"]), nn.Tanh(), nn.Linear(config["width"], 1))
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    if config.get("state"):  # the trial goes on from a checkpoint
        step = config["state"]["step"]
        model.load_state_dict(config["state"]["model"])
        optimizer.load_state_dict(config["state"]["optimizer"])

    def milestone() -> at.Milestone:
        def state() -> dict[str, Any]:
            return {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}

        def evaluate() -> dict[str, float]:
            with torch.no_grad():
                return {"val_loss": nn.functional.mse_loss(model(x), y).item()}

        return at.Milestone(step, evaluate, state)

    while True:
        yield milestone()
        for _ in range(20):
            for group in optimizer.param_groups:
                group["lr"] = config["lr"](min(step / 20_000, 1.0))
            batch = torch.randint(len(x), (config["batch_size"],))
            loss = nn.functional.mse_loss(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += config["batch_size"]


def recipe() -> at.Experiment:
    """What is searched, and the loss that trials race to."""
    space = at.SearchSpace(
        {
            "lr": at.ScheduleSpace(at.Float(1e-3, 0.1, log=True), family="cosine", final=0.05),
            "batch_size": at.Int(16, 256, power_of_two=True),
            "width": at.Choice([16, 32, 64]),
        }
    )
    target = at.Target("val_loss", 0.02, mode="min", limit=10)
    baseline = {"lr.peak": 0.01, "batch_size": 64, "width": 32}
    return at.Experiment("own-model", train, space, target, baseline=baseline)
