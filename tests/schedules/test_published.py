"""Published schedules, reproduced to 1e-12: torch's schedulers, then Hugging Face's formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from autotune.schedules import (
    WSD,
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    LinearCosine,
    Mirrored,
    OneCycle,
    Piecewise,
    Polynomial,
    Schedule,
    Stages,
    Step,
    as_schedule,
    stages,
    warmed,
)

torch = pytest.importorskip("torch")
rates = torch.optim.lr_scheduler
LR, N = 0.4, 40


def sgd(lr: float, groups: int = 1) -> Any:
    parameters = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def trace(optimizer: Any, scheduler: Any, steps: int, knob: str = "lr") -> list[float]:
    """What the first group sees at step 0, 1, ..., `steps`."""
    seen = [optimizer.param_groups[0][knob]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        seen.append(optimizer.param_groups[0][knob])
    return seen


def sequential(optimizer: Any) -> Any:
    warm = rates.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    return rates.SequentialLR(
        optimizer, [warm, rates.CosineAnnealingLR(optimizer, T_max=30)], milestones=[10]
    )


def one_cycle(optimizer: Any, **settings: Any) -> Any:
    return rates.OneCycleLR(optimizer, max_lr=LR, total_steps=N + 1, **settings)


TURN = (0.3 * (N + 1) - 1) / N  # torch's peak, in progress
PUBLISHED: dict[str, tuple[Schedule, Callable[[Any], Any]]] = {
    "ConstantLR": (
        Piecewise((0.25,), (LR / 3, LR), kind="constant"),
        lambda o: rates.ConstantLR(o, factor=1 / 3, total_iters=10),
    ),
    "LinearLR": (
        Stages((0.25,), (Linear(LR / 4, LR), Constant(LR))),
        lambda o: rates.LinearLR(o, start_factor=0.25, total_iters=10),
    ),
    "CosineAnnealingLR": (
        Cosine(LR, 0.01),
        lambda o: rates.CosineAnnealingLR(o, T_max=N, eta_min=0.01),
    ),
    "CosineAnnealingWarmRestarts": (
        Stages((0.25, 0.75), (Cosine(LR, 0), Cosine(LR, 0), Linear(LR, LR / 2))),
        lambda o: rates.CosineAnnealingWarmRestarts(o, T_0=10, T_mult=2),
    ),
    "PolynomialLR": (Polynomial(LR, 0, 3), lambda o: rates.PolynomialLR(o, N, power=3)),
    "PolynomialLR, power 1": (Linear(LR, 0), lambda o: rates.PolynomialLR(o, N, power=1)),
    "ExponentialLR": (Exponential(LR, LR * 0.9**N), lambda o: rates.ExponentialLR(o, gamma=0.9)),
    "StepLR": (Step(LR, LR / 1000, (0.3, 0.6, 0.9)), lambda o: rates.StepLR(o, 12, gamma=0.1)),
    "MultiStepLR": (Step(LR, LR / 100), lambda o: rates.MultiStepLR(o, [20, 30], gamma=0.1)),
    "SequentialLR": (Stages((0.25,), (Linear(LR / 10, LR), Cosine(LR, 0))), sequential),
    "OneCycleLR, cos": (OneCycle(LR / 25, LR, LR / 25e4, TURN), one_cycle),
    "OneCycleLR, linear": (
        OneCycle(LR / 25, LR, LR / 25e4, TURN, shape="linear"),
        lambda o: one_cycle(o, anneal_strategy="linear"),
    ),
    "OneCycleLR, three phases": (
        Stages(
            (TURN, 2 * TURN),
            (Cosine(LR / 25, LR), Cosine(LR, LR / 25), Cosine(LR / 25, LR / 25e4)),
        ),
        lambda o: one_cycle(o, three_phase=True),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_in_torch(name: str) -> None:
    schedule, make = PUBLISHED[name]
    theirs, ours = sgd(LR), sgd(123.0)
    steps = 29 if name == "CosineAnnealingWarmRestarts" else N
    expected = trace(theirs, make(theirs), steps)
    assert [schedule(i / N) for i in range(steps + 1)] == pytest.approx(expected, rel=0, abs=1e-12)
    assert trace(ours, schedule.to_torch(ours, N), steps) == [
        schedule(i / N) for i in range(steps + 1)
    ]


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_momentum_of_one_cycle_as_in_torch(shape: Any) -> None:
    momentum = OneCycle(0.95, 0.85, 0.95, TURN, shape)
    optimizer = sgd(LR)
    scheduler = one_cycle(optimizer, anneal_strategy=shape[:3] if shape == "cosine" else shape)
    expected = trace(optimizer, scheduler, N, knob="momentum")
    assert [momentum(i / N) for i in range(N + 1)] == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_mirrored_momentum_as_in_torch(shape: Any) -> None:
    """torch goes back to the greatest momentum although its last rate is below its first."""
    rate = OneCycle(LR / 25, LR, LR / 25, TURN, shape)
    optimizer = sgd(LR)
    scheduler = one_cycle(optimizer, anneal_strategy=shape[:3] if shape == "cosine" else shape)
    expected = trace(optimizer, scheduler, N, knob="momentum")
    momentum = Mirrored(rate, 0.85, 0.95)
    assert [momentum(i / N) for i in range(N + 1)] == pytest.approx(expected, rel=0, abs=1e-12)


def warm_then(warmup: int, after: Callable[[int], float]) -> Callable[[int], float]:
    return lambda step: LR * (step / max(1, warmup) if step < warmup else after(step))


def hugging_face_wsd(shape: str, floor: float, warmup: int = 16, decay_from: int = 96) -> Any:
    def after(step: int) -> float:
        x = max(0.0, (step - decay_from) / (T - decay_from))
        left: dict[str, float] = {
            "linear": 1 - x,
            "cosine": (1 + math.cos(math.pi * x)) / 2,
            "sqrt": 1 - math.sqrt(x),
        }
        return (1 - floor) * left[shape] + floor

    return warm_then(warmup, after)


# A power of two, so that steps / T are exact: the square root amplifies an ulp at its edge.
T, W = 128, 16
HUGGING_FACE: dict[str, tuple[Schedule, Callable[[int], float]]] = {
    "constant": (as_schedule(LR), lambda step: LR),
    "constant_with_warmup": (warmed(Constant(LR), W / T), warm_then(W, lambda s: 1.0)),
    "linear": (warmed(Linear(LR, 0), W / T), warm_then(W, lambda s: (T - s) / (T - W))),
    "linear without warm-up": (warmed(Linear(LR, 0), 0), warm_then(0, lambda s: (T - s) / T)),
    "cosine": (
        warmed(Cosine(LR, 0), W / T),
        warm_then(W, lambda s: 0.5 * (1 + math.cos(math.pi * (s - W) / (T - W)))),
    ),
    "cosine_with_min_lr": (
        warmed(Cosine(LR, LR / 10), W / T),
        warm_then(W, lambda s: 0.45 * (1 + math.cos(math.pi * (s - W) / (T - W))) + 0.1),
    ),
    "cosine_with_restarts": (
        warmed(Stages((0.5,), (Cosine(LR, 0), Cosine(LR, 0))), W / T),
        warm_then(
            W,
            lambda s: (
                0.5 * (1 + math.cos(math.pi * (2 * (s - W) / (T - W) % 1.0))) if s < T else 0.0
            ),
        ),
    ),
    "polynomial": (
        warmed(Polynomial(LR, 1e-7, 2), W / T),
        warm_then(W, lambda s: ((LR - 1e-7) * (1 - (s - W) / (T - W)) ** 2 + 1e-7) / LR),
    ),
    "inverse_sqrt": (
        warmed(InverseSqrt(LR, LR / math.sqrt(T / W)), W / T),
        warm_then(W, lambda s: 1 / math.sqrt(s / W)),
    ),
    "inverse_sqrt, time scale 50": (
        warmed(InverseSqrt(LR, LR / math.sqrt((T - W + 50) / 50)), W / T),
        warm_then(W, lambda s: 1 / math.sqrt((s + 50 - W) / 50)),
    ),
    "wsd": (WSD(0, LR, 0, W / T, 0.25, "cosine"), hugging_face_wsd("cosine", 0.0)),
    "wsd, linear": (WSD(0, LR, 0, W / T, 0.25), hugging_face_wsd("linear", 0.0)),
    "wsd, 1-sqrt": (WSD(0, LR, LR / 10, W / T, 0.25, "sqrt"), hugging_face_wsd("sqrt", 0.1)),
    "wsd, by stages": (
        Stages((W / T, 0.75), (Linear(0, LR), Constant(LR), Cosine(LR, 0))),
        hugging_face_wsd("cosine", 0.0),
    ),
}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_as_in_hugging_face(name: str) -> None:
    schedule, formula = HUGGING_FACE[name]
    expected = [formula(step) for step in range(T + 1)]
    assert [schedule(step / T) for step in range(T + 1)] == pytest.approx(
        expected, rel=0, abs=1e-12
    )


def test_linear_cosine_as_in_tensorflow() -> None:
    """`linear_cosine_decay` with alpha and beta 0."""
    schedule = LinearCosine(LR, 0)
    left = [(T - step) / T for step in range(T + 1)]
    waves = [(1 + math.cos(math.pi * step / T)) / 2 for step in range(T + 1)]
    expected = [LR * line * wave for line, wave in zip(left, waves, strict=True)]
    assert [schedule(step / T) for step in range(T + 1)] == pytest.approx(expected, abs=1e-12)


def test_dawnbench_records() -> None:
    """ImageNet in 18:05 (fast.ai, 40 epochs) and 2:38 (Alibaba, 28 epochs), from their entries."""
    levels = (1.88, 0.2507, 0.02507, 0.0376)
    fast = Stages(
        tuple(epoch / 40 for epoch in (6, 16, 19, 31)),
        (Linear(1.88, 3.76), *map(Constant, levels)),
    )
    epochs = (0, 3, 6, 15, 16, 18, 19, 30, 31, 39, 40)
    levels_seen = [1.88, 2.82, 1.88, 1.88, 0.2507, 0.2507, 0.02507, 0.02507, *[0.0376] * 3]
    assert [fast(epoch / 40) for epoch in epochs] == pytest.approx(levels_seen)
    batch = Piecewise(
        tuple(epoch / 40 for epoch in (6, 16, 19, 37)),
        (8192, 16384, 8192, 24576, 16384),
        kind="constant",
    )
    assert [batch(epoch / 40) for epoch in (5, 6, 18, 36, 37)] == [8192, 16384, 8192, 24576, 16384]
    alibaba = warmed(Linear(25.0, 0.2), 0.5)
    assert [alibaba(epoch / 28) for epoch in (0, 7, 14, 21, 28)] == [0.0, 12.5, 25.0, 12.6, 0.2]
    assert len(str(fast)) < 250
    assert stages((6, Linear(1.88, 3.76)), *zip((10, 3, 12, 9), levels, strict=True)) == fast
    sizes = ((6, 8192), (10, 16384), (3, 8192), (18, 24576), (3, 16384))
    assert stages(*sizes) == batch


def test_to_torch_sets_every_group_and_resumes_from_its_step() -> None:
    schedule = warmed(Cosine(0.3, 0.0), 0.1)
    optimizer = sgd(0.7, groups=3)
    optimizer.param_groups[1]["lr"] = 99.0
    scheduler = schedule.to_torch(optimizer, 10)
    trace(optimizer, scheduler, 4)
    assert {group["lr"] for group in optimizer.param_groups} == {schedule(4 / 10)}

    again = sgd(0.7, groups=3)
    resumed = schedule.to_torch(again, 10)
    resumed.load_state_dict(scheduler.state_dict())
    again.load_state_dict(optimizer.state_dict())
    assert trace(again, resumed, 8) == [schedule((4 + i) / 10) for i in range(9)]
