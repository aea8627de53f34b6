"""What trainers tell of their gradients and steps is true, on every rank and in every precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trainers.statistics import EVERY, Statistics

NAMES = ("grad_norm", "grad_norm_spread", "weight_norm", "update_ratio")
MLP = {"model": "mlp", "width": 16}


def test_they_are_what_they_say() -> None:
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[3.0, 4.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    statistics = Statistics(model)
    assert statistics.metrics() == {}
    for step in range(1, 2 * EVERY + 4):  # sampled are every 8th step, and the last
        model.weight.grad = torch.tensor([[0.0, float(step)]])
        optimizer.param_groups[0]["lr"] = 0.5 / step
        statistics.next(last=step == 2 * EVERY + 3)
        statistics.before(None)
        optimizer.step()
    sampled = torch.tensor([8.0, 16.0, 19.0], dtype=torch.float64)
    weight = math.hypot(3.0, 4.0 - 0.5 * 19)
    found = statistics.metrics()
    assert found == pytest.approx(
        {
            "grad_norm": float(sampled.mean()),
            "grad_norm_spread": float(sampled.std() / sampled.mean()),
            "weight_norm": weight,
            "update_ratio": 0.5 / weight,
        },
        rel=1e-5,
    )
    statistics.clear()
    assert statistics.metrics() == {}


def test_what_is_not_finite_is_left_out() -> None:
    model = nn.Linear(1, 1, bias=False)
    statistics = Statistics(model)
    for gradient in (math.inf, 2.0):
        model.weight.grad = torch.full((1, 1), gradient)
        statistics.next(last=True)
        statistics.before(None)
    assert statistics.metrics()["grad_norm"] == 2.0
    assert "grad_norm_spread" not in statistics.metrics()
    model.weight.data.fill_(math.nan)
    assert statistics.metrics() == {"grad_norm": 2.0}


def test_a_scale_that_has_come_down_to_0_is_no_error() -> None:
    """In fp16 each step without a finite gradient halves it; the loss says that it diverged."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    statistics = Statistics(model)
    steps = 170
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        scaler.scale((model.weight * math.nan).sum()).backward()
        statistics.next(last=step == steps)
        statistics.before(scaler)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 0.0
    found = statistics.metrics()
    assert found.pop("weight_norm") > 0
    assert found == {"update_ratio": 0.0}


@pytest.mark.parametrize(
    "options",
    [{"precision": "fp16"}, {"precision": "bf16"}, {"microbatch": 7}],
    ids=lambda options: next(iter(options)) + str(next(iter(options.values()))),
)
def test_precision_and_microbatches_do_not_change_them(
    options: dict[str, Any], record: Callable[..., dict[str, Any]]
) -> None:
    plain = record(MLP, 1)["metrics"][1]
    other = record({**MLP, **options}, 1)["metrics"][1]
    for name in NAMES:
        assert other[name] == pytest.approx(plain[name], rel=0.1), name


def test_all_ranks_tell_the_same_as_one(
    record: Callable[..., dict[str, Any]], on_two_ranks: Callable[..., list[dict[str, Any]]]
) -> None:
    alone = record({**MLP, "norm": "group"}, 2)["metrics"][2]
    first, second = (found["metrics"][2] for found in on_two_ranks({**MLP, "norm": "group"}, 2))
    for name in NAMES:
        assert first[name] == second[name], name
        assert first[name] == pytest.approx(alone[name], rel=1e-3), name


@pytest.mark.parametrize("optimizer", ["adamw", "lars", "lamb"])
def test_every_optimizer_has_them(optimizer: str, record: Callable[..., dict[str, Any]]) -> None:
    lr = 5.0 if optimizer == "lars" else 0.01
    metrics = record({**MLP, "optimizer": optimizer, "lr": lr}, 1)["metrics"][1]
    assert metrics.keys() >= {*NAMES, "progress"}
    assert 1e-4 < metrics["update_ratio"] < 0.5


def test_a_restored_run_tells_the_same(record: Callable[..., dict[str, Any]]) -> None:
    whole = record(MLP, 3, save_at=1)
    rest = record({**MLP, "state": whole["state"]}, 2)
    for name in NAMES:
        assert rest["metrics"][-1][name] == whole["metrics"][-1][name]
    assert not {*NAMES} & rest["metrics"][0].keys()
