"""The gradient noise scale: unbiased, equal on all ranks, gone on with bit for bit, and refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainers import image, language, retrieval
from trainers.noise_scale import KEPT, NoiseScale
from trainers.parallel.one_by_one import Squares, gradients
from trainers.parallel.protocol import Forward
from trainers.parallel.ranks import Ranks
from trainers.parallel.single import Single

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)
GROUP = {"model": "mlp", "width": 16, "norm": "group"}


def squares_of(rows: torch.Tensor, sizes: Sequence[int]) -> Squares:
    """Of a model whose gradient for each sample is that row, in passes of these sizes."""
    model = nn.Linear(rows.shape[1], 1, bias=False).double()
    labels = torch.zeros(len(rows))
    parts = list(zip(rows.split(list(sizes)), labels.split(list(sizes)), strict=True))

    def loss(out: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return out.sum() / len(rows)

    return gradients(Single(model, ALONE, Forward(CPU)), parts, loss, Forward(CPU))


def estimates(squares: Squares) -> tuple[float, float]:
    found = NoiseScale(ALONE, 1)
    found.take(squares, None)
    return found.numbers()


@pytest.mark.slow
def test_a_known_covariance_is_found() -> None:
    """Means over many measurements, whose errors are those of means."""
    torch.manual_seed(0)
    deviations = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    mean = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)
    found = torch.tensor(
        [
            estimates(squares_of(mean + deviations * torch.randn(12, 3).double(), (5, 4, 2, 1)))
            for _ in range(4000)
        ]
    )
    error = found.std(dim=0) / math.sqrt(len(found))
    true = torch.tensor([float((deviations**2).sum()), float((mean**2).sum())])
    assert (error < 0.05 * true).all(), "or the next line would say little"
    assert ((found.mean(dim=0) - true).abs() < 4 * error).all()


@given(
    count=st.integers(2, 6),
    items=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None)
def test_passes_of_one_size_give_the_estimates_of_the_paper(
    count: int, items: int, seed: int
) -> None:
    """Appendix A.1 has the batch sizes B_big and B_small."""
    rows = torch.randn(count * items, 5, generator=torch.Generator().manual_seed(seed)).double()
    small, big = float(items), float(count * items)
    by_part = rows.view(count, items, 5).mean(dim=1).square().sum(dim=1).mean().item()
    whole = rows.mean(dim=0).square().sum().item()
    signal = (big * whole - small * by_part) / (big - small)
    trace = (by_part - whole) / (1 / small - 1 / big)
    assert estimates(squares_of(rows, [items] * count)) == pytest.approx((trace, signal), abs=1e-9)


def test_both_are_smoothed_before_they_are_divided() -> None:
    scale, measured = NoiseScale(ALONE, 1), [(8.0, 4.0), (2.0, 1.0), (5.0, 0.5)]
    trace = square = weight = 0.0
    for parts, whole in measured:
        numbers = torch.tensor([parts, whole, 2.0, 2.0], dtype=torch.float64)
        scale.take(Squares(*numbers), None)
        trace = KEPT * trace + parts - 2 * whole
        square = KEPT * square + whole - (parts - 2 * whole) / 2
        weight = KEPT * weight + 1
    assert scale.metrics() == pytest.approx(
        {"gradient_variance": trace / weight, "gradient_noise_scale": trace / square}
    )


def test_what_is_not_finite_or_hidden_by_noise_is_no_scale() -> None:
    scale = NoiseScale(ALONE, 1)
    assert scale.metrics() == {}
    one = torch.ones((), dtype=torch.float64)
    scale.take(Squares(one * math.inf, one, one * 2, one * 2), None)
    assert scale.metrics() == {}
    scale.take(Squares(one * 3, one, one * 2, one), None)
    assert scale.metrics() == {}, "one pass alone says nothing"
    scale.take(Squares(one * 8, one, one * 2, one * 2), None)
    assert scale.metrics() == pytest.approx({"gradient_variance": 6.0})


@pytest.mark.parametrize(
    "options",
    [{"precision": "fp16"}, {"precision": "bf16"}, {"microbatch": 8}],
    ids=lambda options: next(iter(options)) + str(next(iter(options.values()))),
)
def test_precision_and_accumulation_do_not_change_it(
    options: dict[str, Any], record: Callable[..., dict[str, Any]]
) -> None:
    config = {**GROUP, "noise_scale_every": 1, "milestone": 960}
    plain, other = record(config, 1), record({**config, **options}, 1)
    for name in ("gradient_variance", "gradient_noise_scale"):
        assert other["metrics"][1][name] == pytest.approx(plain["metrics"][1][name], rel=0.1), name


def test_measured_steps_are_the_same_steps(
    record: Callable[..., dict[str, Any]], apart: Callable[[dict[str, Any], dict[str, Any]], float]
) -> None:
    plain, other = record(GROUP, 2), record({**GROUP, "noise_scale_every": 2}, 2)
    assert "gradient_noise_scale" not in plain["metrics"][2]
    assert other["metrics"][2]["gradient_noise_scale"] > 0
    assert apart(plain["final"], other["final"]) < 1e-5


def test_all_ranks_have_the_value_of_one(
    record: Callable[..., dict[str, Any]], on_two_ranks: Callable[..., list[dict[str, Any]]]
) -> None:
    """Two passes on each of two ranks are the four of one rank."""
    config = {**GROUP, "noise_scale_every": 2}
    alone = record(config, 2)["metrics"][2]
    first, second = (found["metrics"][2] for found in on_two_ranks(config, 2))
    for name in ("gradient_variance", "gradient_noise_scale"):
        assert first[name] == second[name], name
        assert first[name] == pytest.approx(alone[name], rel=1e-3), name


def test_it_goes_on_bit_for_bit(
    record: Callable[..., dict[str, Any]],
    on_two_ranks: Callable[..., list[dict[str, Any]]],
    same: Callable[[Any, Any], bool],
) -> None:
    config = {**GROUP, "noise_scale_every": 3, "microbatch": 5}
    whole = on_two_ranks(config, 3, save_at=1)
    rest = on_two_ranks(config, 2, restore=[found["state"] for found in whole])
    for one, other in zip(whole, rest, strict=True):
        assert same(one["final"], other["final"])
        name = "gradient_noise_scale"
        assert one["metrics"][-1][name] == other["metrics"][-1][name]
    without = record({**GROUP, "noise_scale_every": 3, "state": record(GROUP, 1)["final"]}, 1)
    assert without["metrics"][-1]["gradient_noise_scale"] > 0, "a state of before is no obstacle"


REFUSED = [
    (image, {"noise_scale_every": 0}, "noise_scale_every must be a whole number at least 1"),
    (image, {"noise_scale_evry": 8}, "did you mean 'noise_scale_every'?"),
    (image, {"data_parallel_shard_degree": 2}, "noise_scale_every needs a whole model on each"),
    (language, {"tensor_parallel_degree": 2}, "got tensor_parallel_degree 2"),
    (image, {"gradient_compression": "fp16"}, "noise_scale_every needs gradient_compression"),
    (image, {"synchronization": "local_sgd"}, "noise_scale_every needs synchronization 'every_"),
    (
        image,
        {"noise_scale_every": 1, "bucket_cap_mb": 5.0},
        "bucket_cap_mb 5.0 has no effect where every step is measured (noise_scale_every 1)",
    ),
    (retrieval, {}, "noise_scale_every must be None in trainers.retrieval"),
]


@pytest.mark.parametrize(("trainer", "options", "message"), REFUSED)
def test_what_has_no_gradients_of_its_own_samples_is_refused(
    trainer: Any, options: dict[str, Any], message: str
) -> None:
    data = {
        image: {"data": "digits"},
        language: {"text": "synthetic"},
        retrieval: {"data": "identities"},
    }[trainer]
    with pytest.raises(ValueError) as raised:
        trainer.read_settings({**data, "lr": 0.1, "noise_scale_every": 4, **options})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
