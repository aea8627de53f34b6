"""AdaScale: the gain is the paper's, steps and progress follow it, and trainings go on with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autotune.schedules import Linear
from trainers import image, language, retrieval
from trainers.optimizers.adascale import AdaScale, gain
from trainers.parallel.update import Everywhere

NUMBERS = st.floats(1e-6, 1e6)
SIZES = st.integers(1, 512)
CONFIG = {"model": "mlp", "width": 16, "norm": "group", "batch_size": 32, "momentum": 0.9}


@given(trace=NUMBERS, square=NUMBERS, base=SIZES, scale=st.integers(1, 64))
def test_the_gain_lies_between_1_and_the_scale(
    trace: float, square: float, base: int, scale: int
) -> None:
    found = gain(trace, square, base, base * scale)
    assert 1 - 1e-9 <= found <= scale + 1e-9
    sigma2, mu2 = trace / base, square  # equation (4) of the paper, of the base batch
    assert found == pytest.approx((sigma2 + mu2) / (sigma2 / scale + mu2))


@given(trace=st.floats(-1e6, 1e6), square=st.floats(-1e6, 1e6), base=SIZES)
def test_the_gain_of_the_base_batch_is_1(trace: float, square: float, base: int) -> None:
    assert gain(trace, square, base, base) == pytest.approx(1.0)


@given(number=NUMBERS, base=SIZES, scale=st.integers(1, 64))
def test_equal_gradients_gain_nothing_and_noise_alone_gains_the_scale(
    number: float, base: int, scale: int
) -> None:
    assert gain(0.0, number, base, base * scale) == 1.0
    assert gain(-number, number, base, base * scale) == 1.0, "an estimate may be below 0"
    assert gain(number, 0.0, base, base * scale) == pytest.approx(scale)
    assert gain(number, -number, base, base * scale) == pytest.approx(scale)


class Known:
    """A noise that is known."""

    items = 64.0

    def __init__(self, trace: float, square: float) -> None:
        self._numbers = trace, square

    def numbers(self) -> tuple[float, float]:
        return self._numbers


@pytest.mark.parametrize(("numbers", "expected"), [((48.0, 1.0), 4.0 / 1.75), ((math.nan,) * 2, 1)])
def test_a_step_is_as_long_as_the_gain_says(numbers: tuple[float, float], expected: float) -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model.weight.item()
    model.weight.grad = torch.ones(1, 1)
    scaled = AdaScale(Everywhere(), Known(*numbers), 16)
    scaled.step(optimizer, None)
    assert before - model.weight.item() == pytest.approx(0.5 * expected, rel=1e-5)
    assert optimizer.param_groups[0]["lr"] == 0.5
    scaled.step(optimizer, None)
    assert scaled.steps == pytest.approx(2 * expected)
    assert scaled.samples(3) == pytest.approx(2 * expected * 16 * 3)


def test_at_the_base_batch_it_is_the_same_training(
    record: Callable[..., dict[str, Any]], apart: Callable[[dict[str, Any], dict[str, Any]], float]
) -> None:
    config = {**CONFIG, "lr": Linear(0.1, 0.0)}
    plain, other = record(config, 2), record({**config, "adascale_batch_size": 32}, 2)
    assert other["metrics"][2]["adascale_gain"] == 1.0
    assert other["metrics"][2]["progress"] == pytest.approx(plain["metrics"][2]["progress"])
    assert apart(plain["final"], other["final"]) < 1e-5


def test_progress_counts_scale_invariant_steps(record: Callable[..., dict[str, Any]]) -> None:
    found = record({**CONFIG, "lr": Linear(0.1, 0.0), "adascale_batch_size": 8}, 2)
    metrics, final = found["metrics"][2], found["final"]
    steps = found["steps"][2] / 32
    assert 1 < metrics["adascale_gain"] <= 4
    assert steps < final["adascale_steps"] < 4 * steps
    epoch = found["steps"][2] / record(CONFIG, 2)["metrics"][2]["progress"] / 2
    assert metrics["progress"] == pytest.approx(final["adascale_steps"] * 8 / (2 * epoch))
    assert metrics["lr"] == pytest.approx(0.1 * (1 - metrics["progress"]))


@pytest.mark.slow
def test_ranks_agree_and_go_on_bit_for_bit(
    record: Callable[..., dict[str, Any]],
    on_two_ranks: Callable[..., list[dict[str, Any]]],
    same: Callable[[Any, Any], bool],
) -> None:
    config = {**CONFIG, "lr": Linear(0.1, 0.0), "adascale_batch_size": 8}
    whole = on_two_ranks(config, 3, save_at=1)
    rest = on_two_ranks(config, 2, restore=[found["state"] for found in whole])
    assert whole[0]["final"]["adascale_steps"] == whole[1]["final"]["adascale_steps"]
    for one, other in zip(whole, rest, strict=True):
        assert same(one["final"], other["final"])
    alone = record(config, 3)["final"]["adascale_steps"]
    assert whole[0]["final"]["adascale_steps"] == pytest.approx(alone, rel=1e-3)


IMAGE = {"data": "digits", "model": "mlp", "batch_size": 64}
REFUSED = [
    (image, {"optimizer": "adamw"}, "adascale_batch_size 16 needs optimizer sgd, got 'adamw'"),
    (image, {"batch_size": Linear(32, 64)}, "needs a batch_size without a schedule"),
    (
        image,
        {"batch_size": 8},
        "adascale_batch_size 16 needs a batch_size at least as large, got 8",
    ),
    (image, {"noise_scale_every": 4}, "adascale_batch_size 16 needs noise_scale_every 1"),
    (
        image,
        {"all_reduce_topology": "two_dimensional"},
        "all_reduce_topology 'two_dimensional' has no effect where every step is measured",
    ),
    (image, {"data_parallel_shard_degree": 2}, "adascale_batch_size needs a whole model on each"),
    (image, {"adascale_batch_size": 0}, "adascale_batch_size must be a whole number at least 1"),
    (retrieval, {"data": "identities"}, "adascale_batch_size must be None in trainers.retrieval"),
]


@pytest.mark.parametrize(("trainer", "options", "message"), REFUSED)
def test_what_has_no_gain_is_refused(trainer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        trainer.read_settings({**IMAGE, "lr": 0.1, "adascale_batch_size": 16, **options})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_scheduled_size_is_refused_where_training_begins() -> None:
    config = {"text": "synthetic", "lr": 0.1, "sequence_length": Linear(8, 16)}
    with pytest.raises(ValueError, match="adascale_batch_size needs a sequence_length without"):
        next(language.train({**config, "adascale_batch_size": 16}))
