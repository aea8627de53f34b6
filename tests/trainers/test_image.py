"""The image trainer on one rank."""

from __future__ import annotations

import gc
import logging
import math
import shutil
import weakref
from itertools import pairwise
from typing import Any

import pytest
import tiers
import torch

from autotune.schedules import Constant, Cosine, Linear, Piecewise, stages, warmed
from autotune.trial import Change
from trainers.data.images import read_images
from trainers.data.stream import MemoryStream, generator
from trainers.image import train
from trainers.learner import Learner
from trainers.models.images import make_model

MLP = {"model": "mlp", "width": 16}
NET = {
    "model": "resnet8",
    "width": 4,
    "augment": "crop+flip+cutout",
    "train_size": 300,
    "val_size": 100,
}
BASE: dict[str, Any] = {"data": "digits", "lr": 0.1, "batch_size": 32, **MLP}


def test_agrees_with_a_loop_written_by_hand(record: Any) -> None:
    found = record({**MLP, "lr": Linear(0.1, 0.0), "weight_decay": 1e-2, "horizon": 1}, 3)
    data = read_images("digits", None, torch.device("cpu"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make_model("mlp", (1, 8, 8), 10, 16, "batch")
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.SGD(
        [{"params": weights, "weight_decay": 1e-2}, {"params": biases}], lr=0.1, momentum=0.9
    )
    size = len(data.train_y)
    order = torch.randperm(size, generator=generator(0, 0))
    for start in range(0, found["steps"][-1], 32):
        index = order[start : start + 32]
        loss = torch.nn.functional.cross_entropy(model(data.train_x[index]), data.train_y[index])
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - start / size)
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found["final"]["learner"]["model"][name], value)


def test_milestones_follow_the_samples_whatever_the_batch_size(record: Any) -> None:
    assert record({**MLP, "milestone": 300}, 3)["steps"] == [0, 320, 608, 928]
    assert record({**MLP, "milestone": 300, "batch_size": 100}, 3)["steps"] == [0, 300, 600, 900]
    assert record({**MLP, "milestone": 300, "batch_size": 450}, 3)["steps"] == [0, 450, 900, 1350]


def test_the_warm_up_leaves_no_trace() -> None:
    before = torch.random.get_rng_state()
    trainer = train({**BASE, **NET})
    state = next(trainer).state()
    trainer.close()
    assert torch.equal(before, torch.random.get_rng_state())
    assert state["learner"]["optimizer"]["state"] == {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make_model("resnet8", (1, 8, 8), 10, 4, "batch")
    for name, value in model.state_dict().items():
        assert torch.equal(state["learner"]["model"][name], value), name


@pytest.mark.parametrize("fails", ["warm_up", "restore"])
def test_a_start_that_fails_closes_what_it_has_opened(
    fails: str, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, listening = record(MLP, 0)["final"], [*logging.getLogger("torch._dynamo").handlers]
    closed: list[str] = []

    def failing(self: Learner, *_: Any) -> None:
        raise RuntimeError("no such kernel")

    for kind in (Learner, MemoryStream):
        real = kind.close

        def close(self: Any, real: Any = real) -> None:
            closed.append(type(self).__name__)
            real(self)

        monkeypatch.setattr(kind, "close", close)
    monkeypatch.setattr(Learner, fails, failing)
    with pytest.raises(RuntimeError, match="no such kernel"):
        next(train({**BASE, "state": state, "compile": fails == "warm_up"}))
    assert sorted(closed) == ["Learner", "MemoryStream"]
    assert logging.getLogger("torch._dynamo").handlers == listening


def test_evaluating_leaves_no_trace(record: Any, same: Any) -> None:
    runs = [record(NET, 3, evaluations=n) for n in (0, 1, 3)]
    assert same(runs[0]["final"], runs[1]["final"])
    assert same(runs[0]["final"], runs[2]["final"])


OPTIMIZERS = [
    {"optimizer": "sgd", "nesterov": True, "weight_decay": 1e-3},
    {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    {"optimizer": "lars", "lr": 10.0, "trust_coefficient": Linear(0.01, 0.001)},
    {"optimizer": "lamb", "lr": 0.01, "variant": "nvidia"},
    {"optimizer": "nadamw", "lr": 0.01, "weight_decay": 0.1},
    {"optimizer": "muon", "lr": 0.01, "weight_decay": 0.1, "adamw_share": 0.5},
    {"optimizer": "schedulefree_sgd", "lr": 1.0, "weight_decay": 1e-3},
    {"optimizer": "schedulefree_adamw", "lr": 0.01, "weight_decay": 0.1, "beta2": 0.99},
    {"precision": "fp16"},
]
QUICK = ("sgd", "lamb")


@pytest.mark.parametrize(
    "options", tiers.rows({o.get("optimizer", "fp16"): o for o in OPTIMIZERS}, QUICK)
)
def test_a_restored_run_goes_on_bit_for_bit(
    options: dict[str, Any], record: Any, same: Any
) -> None:
    config = {**NET, "lr": warmed(Cosine(0.1, 0.0), 0.1), "horizon": 3, **options}
    changes = {0: Change(lr_factor=0.5), 1: Change(momentum=0.8, lr_factor=0.5)}
    whole = record(config, 4, changes=changes, save_at=2)
    assert whole["steps"][2] % 300, "the checkpoint is to lie within an epoch"
    rest = record({**config, "state": whole["state"]}, 2)
    assert rest["steps"] == whole["steps"][2:]
    assert same(rest["final"], whole["final"])
    assert rest["metrics"][0]["val_loss"] == whole["metrics"][2]["val_loss"]
    assert rest["metrics"][-1]["lr"] == whole["metrics"][-1]["lr"]
    assert rest["metrics"][-1]["train_loss"] == whole["metrics"][-1]["train_loss"]


def test_a_fork_keeps_the_moments_and_takes_its_own_settings(record: Any) -> None:
    trunk = record({**MLP, "weight_decay": 1e-3}, 1, save_at=1)
    fork = train({**BASE, "nesterov": True, "state": trunk["state"]})
    state = next(fork).state()["learner"]["optimizer"]
    fork.close()
    assert all(group["nesterov"] for group in state["param_groups"])
    assert len(state["state"]) == 6


@pytest.mark.parametrize(
    "microbatch", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 16))]
)
def test_microbatches_keep_the_global_batch(microbatch: int, record: Any, apart: Any) -> None:
    config = {**NET, "norm": "group", "momentum": 0.5, "label_smoothing": Linear(0.1, 0.0)}
    whole = record(config, 1)
    parts = record({**config, "microbatch": microbatch}, 1)
    assert apart(whole["final"], parts["final"]) < 1e-5
    loss = whole["metrics"][-1]["train_loss"]
    assert parts["metrics"][-1]["train_loss"] == pytest.approx(loss, rel=1e-5)


def test_a_batch_size_schedule_is_read_at_every_step(record: Any) -> None:
    schedule = Piecewise((0.25, 0.5), (40.4, 80, 160), kind="constant")
    config = {**MLP, "train_size": 400, "horizon": 2, "batch_size": schedule, "milestone": 1}
    steps = record(config, 13)["steps"]
    sizes = [40] * 5 + [80] * 3 + [160] * 5
    assert [after - before for before, after in pairwise(steps)] == sizes


def test_changes_are_honoured_and_add_up(record: Any) -> None:
    changes = {0: Change(lr_factor=0.5), 1: Change(lr_factor=0.5, batch_size=100, momentum=0.5)}
    found = record({**MLP, "lr": 0.4}, 3, changes=changes)
    assert [m["lr"] for m in found["metrics"]] == [0.4, 0.2, 0.1, 0.1]
    assert [m["momentum"] for m in found["metrics"]] == [0.9, 0.9, 0.5, 0.5]
    assert [m["batch_size"] for m in found["metrics"]] == [32, 32, 100, 100]
    assert found["steps"][2] == found["steps"][1] + 300


def test_the_final_value_holds_beyond_the_horizon(record: Any) -> None:
    config = {**MLP, "lr": Linear(0.1, 0.01), "horizon": 0.5}
    assert [m["lr"] for m in record(config, 3)["metrics"]][2:] == [0.01, 0.01]


def test_it_ends_after_max_epochs(record: Any) -> None:
    found = record({**MLP, "max_epochs": 0.5, "milestone": 10_000}, 9)
    assert found["steps"] == [0, 544]
    assert "final" not in found


def test_metrics_are_finite_from_the_first_milestone_on(record: Any) -> None:
    first, second = record(MLP, 1)["metrics"]
    knobs = {"lr", "momentum", "batch_size", "image_size"}
    assert set(first) == {"val_accuracy", "val_loss", "progress", *knobs}
    sampled = {"grad_norm", "grad_norm_spread", "weight_norm", "update_ratio"}
    assert set(second) == {*first, "train_loss", "samples_per_second", "flops_per_second", *sampled}
    assert all(math.isfinite(v) for v in (*first.values(), *second.values()))
    assert second["val_accuracy"] > first["val_accuracy"]


def test_the_flops_are_those_of_the_images_of_each_size(record: Any) -> None:
    """By hand: products and sums of a resnet8 of width 4, forwards and twice backwards."""
    size = stages((1, 8), (1, 4))  # an epoch each, with a milestone in it and one after
    config = {"model": "resnet8", "width": 4, "image_size": size, "horizon": 2, "train_size": 600}
    metrics = record({**config, "batch_size": 30}, 4)["metrics"]
    side8 = 64 * 9 * (4 + 16 + 16) + 16 * (9 * (32 + 64) + 32) + 4 * (9 * (128 + 256) + 128)
    found = [m["flops_per_second"] / m["samples_per_second"] for m in metrics[1:]]
    full, quarter = 6 * (side8 + 160), 6 * (side8 / 4 + 160)
    assert found == pytest.approx([full, full, quarter, quarter])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns(precision: str, record: Any) -> None:
    metrics = record({**MLP, "precision": precision, "channels_last": True}, 4)["metrics"]
    assert metrics[-1]["val_accuracy"] > 0.8


def test_constant_schedules_equal_numbers(record: Any, same: Any) -> None:
    numbers = record({**MLP, "lr": 0.1, "weight_decay": 0.01}, 1)
    schedules = record({**MLP, "lr": Constant(0.1), "weight_decay": lambda progress: 0.01}, 1)
    assert same(numbers["final"], schedules["final"])


def test_a_seed_changes_everything(record: Any, apart: Any) -> None:
    a, b = (record({**MLP, "seed": seed}, 0) for seed in (0, 1))
    assert apart(a["final"], b["final"]) > 1e-3


def test_closing_frees_the_model_even_if_a_milestone_is_kept() -> None:
    trainer = train({**BASE, **NET})
    milestone = next(trainer)
    trainer.send(None)
    model = weakref.ref(milestone.evaluate.__self__._learner.model)  # type: ignore[attr-defined]
    assert model() is not None
    trainer.close()
    gc.collect()
    assert model() is None


@pytest.mark.slow  # the compiler takes half a minute
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_training_agrees(record: Any, apart: Any) -> None:
    plain, compiled = (record({**MLP, "compile": c, "train_size": 320}, 1) for c in (False, True))
    assert apart(plain["final"], compiled["final"]) < 1e-5


def test_a_change_below_the_number_of_ranks_is_refused(record: Any) -> None:
    with pytest.raises(
        ValueError, match="batch_size must be at least the number of ranks, 1, got 0"
    ):
        record(MLP, 1, changes={0: Change(batch_size=0)})
