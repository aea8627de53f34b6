"""The language trainer with its model sharded over two ranks of a real gloo group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from autotune.schedules import Linear
from trainers.language import read_settings
from trainers.parallel.shard import sharded

SHARDED = {"text": "synthetic", "sharding": "full", "layers": 2}
KINDS = [
    {},
    {"batch_size": 7, "microbatch": 2},
    {"batch_size": 3, "microbatch": 1},
    {"batch_size": Linear(3, 9), "horizon": 0.5, "optimizer": "sgd", "lr": 0.1},
    {"optimizer": "lars", "lr": 1.0, "trust_coefficient": 0.02},
    {"optimizer": "lamb", "lr": 0.01, "max_grad_norm": 1.0},
    {"optimizer": "nadamw", "lr": 0.01, "weight_decay": 0.1},
    {"optimizer": "schedulefree_adamw", "lr": 0.01, "weight_decay": 0.1},
    {"optimizer": "schedulefree_sgd", "lr": 1.0},
    {"optimizer": "muon", "lr": 0.01, "weight_decay": 0.1},
]
NAMES = ["even", "uneven microbatches", "an idle rank", "scheduled batch", "lars", "lamb"]
NAMES += ["nadamw", "schedulefree_adamw", "schedulefree_sgd", "muon"]
SLOW = ("even", "lamb", "nadamw", "schedulefree_adamw", "schedulefree_sgd", "muon")


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(kind, id=name, marks=pytest.mark.slow if name in SLOW else [])
        for kind, name in zip(KINDS, NAMES, strict=True)
    ],
)
def test_sharded_ranks_equal_one_process(
    config: dict[str, Any], record: Any, on_two_ranks: Any
) -> None:
    rounding = 1e-2 if config.get("optimizer") == "muon" else 1e-3  # its steps are in bfloat16
    alone, ranks = record({**SHARDED, **config}, 2), on_two_ranks({**SHARDED, **config}, 2)
    for rank in ranks:
        assert rank["steps"] == alone["steps"]
        for found, wanted in zip(rank["metrics"], alone["metrics"], strict=True):
            assert found.keys() - {"exposed_communication"} == wanted.keys()
            for key in ("val_accuracy", "val_loss", "lr", "batch_size"):
                assert found[key] == pytest.approx(wanted[key], rel=1e-4)
        for key in ("train_loss", "grad_norm", "weight_norm", "update_ratio"):
            wanted = alone["metrics"][-1][key]
            assert rank["metrics"][-1][key] == pytest.approx(wanted, rel=rounding), key
        assert rank["freed"]


@pytest.mark.parametrize("more", [{"compile": True}, {"precision": "fp16"}])
def test_what_cannot_be_sharded_is_refused(more: dict[str, Any]) -> None:
    says = "data_parallel_shard_degree -1 takes precision fp32, tf32 or bf16, and compile False"
    with pytest.raises(ValueError, match=says):
        read_settings({"text": "synthetic", "lr": 0.1, "sharding": "full", **more})


def test_a_rank_without_anything_to_validate_is_refused_on_all(on_two_ranks: Any) -> None:
    errors = [rank["error"] for rank in on_two_ranks({**SHARDED, "val_size": 32}, 1)]
    says = "val_size must give each rank a sequence where the model is sharded, at least 33 tokens"
    assert errors == [f"{says}, got 32"] * 2


@pytest.mark.parametrize(
    "more", [pytest.param({}, marks=pytest.mark.slow), {"batch_size": 7, "microbatch": 2}]
)
def test_layers_gathered_in_bfloat16_compute_what_autocast_does(
    more: dict[str, Any], on_two_ranks: Any
) -> None:
    """An embedding, a norm or a residual in bfloat16 would already change the first loss."""
    config = {**SHARDED, "precision": "bf16", **more}
    whole, ranks = on_two_ranks({**config, "sharding": "none"}, 2), on_two_ranks(config, 2)
    for rank in ranks:
        untrained, wanted = rank["metrics"][0]["val_loss"], whole[0]["metrics"][0]["val_loss"]
        assert untrained == pytest.approx(wanted, rel=1e-6)
        for key in ("val_loss", "train_loss", "grad_norm"):
            wanted = whole[0]["metrics"][-1][key]
            assert rank["metrics"][-1][key] == pytest.approx(wanted, rel=1e-3), key
        parameters = rank["final"]["learner"]["model"].values()
        assert {p.to_local().dtype for p in parameters} == {torch.float32}


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("count", "forward", "backward"),
    [
        (1, ["1", "2", "3"], ["2", "1", "0"]),
        (2, ["1", "2", "2", "3", "3"], ["2", "1", "1", "0", "0"]),
        (None, [], ["2", "1", "0"]),
    ],
)
def test_so_many_units_are_gathered_ahead(
    count: int | None, forward: list[str], backward: list[str], group_of_one: None
) -> None:
    """Each unit in turn asks for those after it, backwards for those before it."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    network = sharded(model, model, None, count)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        network(torch.ones(2, 4)).sum().backward()
    names = sorted(recorded.events(), key=lambda event: event.time_range.start)
    asked = [re.fullmatch(r"FSDP::(\w+)_prefetch for (\d)", event.name) for event in names]
    found = [match.groups() for match in asked if match is not None]
    assert [unit for way, unit in found if way == "forward"] == forward
    assert [unit for way, unit in found if way == "backward"] == backward
