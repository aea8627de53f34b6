"""What is turned: schedules, controllers' changes, and the optimizer's numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.schedules import Constant, Effective, Following, Linear, Piecewise, warmed
from autotune.trial import Change
from trainers import image, language
from trainers.knobs import Knobs, build_optimizer
from trainers.optimizers.schedule_free import KINDS
from trainers.training import read_training

GROWS = Piecewise((0.5,), (32, 128), kind="constant")


def knobs(ranks: int = 1, state: dict[str, Any] | None = None, **config: Any) -> Knobs:
    training, _ = read_training({"lr": 0.1, **config}, {}, "here")
    return Knobs(training, ranks, state or {})


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_a_learning_rate_follows_a_batch_size_that_a_controller_set(power: float) -> None:
    base = warmed(Linear(0.1, 0.01), 0.2)
    found = knobs(lr=Following(base, GROWS, power, 32), batch_size=GROWS)
    assert found.lr(0.4) == base(0.4)
    assert found.lr(0.6) == pytest.approx(base(0.6) * 4**power)
    found.change(Change(batch_size=64, lr_factor=0.5))
    for progress in (0.1, 0.4, 0.6, 1.0):
        assert found.batch_size(progress) == 64
        assert found.lr(progress) == pytest.approx(0.5 * base(progress) * 2**power)
    again = knobs(lr=Following(base, GROWS, power, 32), batch_size=GROWS, state=found.state())
    assert again.lr(0.6) == found.lr(0.6)
    again.change(Change(lr_factor=0.5))
    assert again.lr(0.6) == pytest.approx(0.5 * found.lr(0.6)), "factors multiply"


def test_a_learning_rate_that_follows_something_else_does_not() -> None:
    found = knobs(lr=Following(Constant(0.1), Linear(1, 2), 1.0, 1), batch_size=GROWS)
    found.change(Change(batch_size=64))
    assert found.lr(1.0) == pytest.approx(0.2)


def test_an_effective_learning_rate_makes_up_for_a_set_momentum() -> None:
    momentum = Linear(0.5, 0.9)
    following = Following(Constant(1.0), GROWS, 1.0, 32)
    found = knobs(lr=Effective(following, momentum), momentum=momentum, batch_size=GROWS)
    assert found.lr(1.0) == pytest.approx(0.4)
    found.change(Change(momentum=0.75, batch_size=64))
    assert found.lr(1.0) == pytest.approx(0.5)
    assert found.momentum(0.3) == 0.75


def test_training_follows_it_too(record: Any) -> None:
    config = {"model": "mlp", "batch_size": 32, "lr": Following(Constant(0.1), Constant(32), 1, 32)}
    metrics = record(config, 2, changes={0: Change(batch_size=64)})["metrics"]
    assert [m["lr"] for m in metrics] == [0.1, 0.2, 0.2]


@pytest.mark.parametrize(
    ("size", "allowed"),
    [
        (2, "at least the number of ranks, 3, got 2"),
        (
            Piecewise((0.3, 0.6), (8, 2, 16), kind="constant"),
            r"at least the number of ranks, 3, but value 2 of 3 \(from 30%\) is 2, got piecewise",
        ),
        (Linear(8, 1), "at least the number of ranks, 3, but it goes down to 1, got linear 8 -> 1"),
        (lambda x: 8 - 7 * x, "at least the number of ranks, 3 at every progress, also at 0.8"),
    ],
    ids=["number", "piecewise", "linear", "function"],
)
def test_a_batch_below_the_ranks_is_refused(size: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"^batch_size must be {allowed}"):
        knobs(3, batch_size=size)


def test_a_batch_that_rounds_to_the_ranks_is_allowed() -> None:
    assert knobs(3, batch_size=Linear(8, 2.6)).batch_size(1.0) == 3


OPTIMIZERS = ["sgd", "adamw", "nadamw", "lars", "lamb", "muon"]
WITH_MOMENTUM = ("sgd", "lars", "muon", "schedulefree_sgd")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_everything_that_may_be_scheduled_reaches_the_optimizer(optimizer: str) -> None:
    ramp: Callable[[float], Linear] = lambda high: Linear(high / 2, high)  # noqa: E731
    config: dict[str, Any] = {"optimizer": optimizer, "lr": ramp(1), "weight_decay": ramp(0.1)}
    if optimizer in WITH_MOMENTUM:
        config |= {"momentum": ramp(0.9)}
    if optimizer not in ("sgd", "lars"):
        config |= {"beta1": ramp(0.9), "beta2": ramp(0.99)}
    if optimizer in ("lars", "lamb"):
        config |= {"trust_coefficient": ramp(0.5)}
    training, _ = read_training(config, {}, "here")
    model = nn.Linear(3, 2) if optimizer != "muon" else nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    built, found = build_optimizer(model, training), Knobs(training, 1, {})
    found.set(built, 0.0)
    found.turn(built, 1.0)
    decayed, plain = built.param_groups
    assert (decayed["lr"], decayed["weight_decay"], plain["weight_decay"]) == (1.0, 0.1, 0.0)
    if "momentum" in config:
        assert plain["momentum"] == 0.9
    if "beta1" in config:
        assert plain["betas"] == (0.9, 0.99)
    if "trust_coefficient" in config:
        assert decayed["trust_coefficient"] == 0.5
    assert all(type(v) is float for v in (decayed["lr"], decayed["weight_decay"]))


def test_what_is_excluded_may_be_a_function() -> None:
    config = {"lr": 0.1, "weight_decay": 0.1, "exclude": lambda name, value: name == "weight"}
    training, _ = read_training(config, {}, "here")
    decayed, plain = build_optimizer(nn.Linear(3, 2), training).param_groups
    assert [decayed["params"][0].ndim, plain["params"][0].ndim] == [1, 2]


def test_only_what_changes_is_turned_at_a_step() -> None:
    training, _ = read_training({"lr": Linear(1, 0), "weight_decay": 0.1}, {}, "here")
    built, found = build_optimizer(nn.Linear(3, 2), training), Knobs(training, 1, {})
    found.set(built, 0.0)
    for group in built.param_groups:
        group["momentum"] = group["weight_decay"] = -1.0
    found.turn(built, 0.5)
    assert [(g["lr"], g["momentum"], g["weight_decay"]) for g in built.param_groups] == [
        (0.5, -1.0, -1.0)
    ] * 2
    found.change(Change(momentum=0.5))
    found.set(built, 0.5)
    assert [g["momentum"] for g in built.param_groups] == [0.5, 0.5]


def test_beta2_is_scheduled(record: Any, apart: Any) -> None:
    config = {"model": "mlp", "width": 16, "optimizer": "adamw", "lr": 0.01, "horizon": 1}
    one = record({**config, "beta2": 0.99}, 3)
    other = record({**config, "beta2": lambda progress: 0.99}, 3)
    scheduled = record({**config, "beta2": Linear(0.9, 0.99)}, 3)
    assert apart(one["final"], other["final"]) == 0
    assert apart(one["final"], scheduled["final"]) > 1e-4
    betas = scheduled["final"]["learner"]["optimizer"]["param_groups"][0]["betas"]
    assert betas[0] == 0.9
    assert 0.97 < betas[1] < 0.99


def test_all_schedules_together_train(record: Any) -> None:
    """As many knobs as there are, turned at every step, still learn."""
    found = record(
        {
            "model": "resnet8",
            "width": 8,
            "optimizer": "lars",
            "horizon": 2,
            "lr": Following(warmed(Linear(5.0, 0.1), 0.1), Linear(16, 64), 0.5, 16),
            "batch_size": Linear(16, 64),
            "image_size": Linear(6, 8),
            "momentum": Linear(0.8, 0.9),
            "weight_decay": Linear(1e-4, 1e-3),
            "trust_coefficient": Linear(0.01, 0.005),
            "label_smoothing": Linear(0.1, 0.0),
            "milestone": 1078,
        },
        2,
    )
    assert found["metrics"][-1]["val_accuracy"] > 0.6
    assert torch.isfinite(torch.tensor(found["metrics"][-1]["train_loss"]))


class NeverWaits(TorchDispatchMode):
    """Fails where a step would wait for the device: a value or a shape asked of a tensor."""

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.WAITS, name
        return func(*args, **(kwargs or {}))


IMAGES = {"data": "digits", "model": "resnet8", "width": 4, "image_size": Linear(6, 8)}
WORDS = {"text": "synthetic", "layers": 1, "width": 16, "heads": 2, "train_size": 2000}


@pytest.mark.parametrize("kind", ["images", pytest.param("text", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [
        *product(("sgd", "adamw", "lars", "lamb"), ("fp16",)),
        *product(("muon", "schedulefree_sgd", "schedulefree_adamw"), ("bf16",)),
        *(
            pytest.param(name, precision, marks=pytest.mark.slow)
            for name, precision in (
                *product(("sgd", "adamw", "lars", "lamb"), ("fp32", "bf16")),
                *product(("muon", "schedulefree_sgd", "schedulefree_adamw"), ("fp32",)),
            )
        ),
    ],
)
def test_a_step_never_waits_for_the_device(optimizer: str, kind: str, precision: str) -> None:
    """Nor for a loss scaler, which asks whether the gradient is finite.

    Torch's NAdam reads its counts of steps, which are on the host, so it is not tried here; it and
    Muon leave the scale to the scaler, which waits.
    """
    first = "momentum" if optimizer in WITH_MOMENTUM else "beta1"
    common = {
        "optimizer": optimizer,
        "precision": precision,
        "lr": Following(Linear(0.01, 0.0), Linear(16, 32), 0.5, 16),
        "batch_size": Linear(16, 32),
        "label_smoothing": Linear(0.1, 0.0),
        "weight_decay": Linear(0.0, 0.1),
        "horizon": 1,
        "milestone": 200,
        "microbatch": 9,
        first: 0.9 if optimizer in KINDS else Linear(0.8, 0.9),
    }
    if kind == "images":
        trainer = image.train({**common, **IMAGES, "augment": "crop+flip+cutout"})
    else:
        trainer = language.train({**common, **WORDS, "sequence_length": Linear(4, 8)})
    built = next(trainer).evaluate.__self__._learner.optimizer  # type: ignore[attr-defined]
    with NeverWaits():
        milestone = trainer.send(None)
    assert milestone.step >= 200
    assert milestone.evaluate.__self__._learner.optimizer is built  # type: ignore[attr-defined]
    trainer.close()
