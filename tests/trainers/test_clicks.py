"""The trainer of clicks on one and two ranks: exact steps, staleness, checkpoints."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from autotune.backends.worker.sharded_tensors import assemble
from autotune.schedules import Linear, warmed
from autotune.trial import Change
from trainers import clicks
from trainers.click_settings import KEYS, KNOBS, read_settings

GOOD: dict[str, Any] = {"data": "generated", "lr": 0.01}
UPDATES = ("synchronous", "asynchronous", "geo_sgd", "hogwild")


@pytest.fixture(scope="session")
def own() -> ModuleType:
    """`click_ranks`, whose `record` trains in this process."""
    path = Path(__file__).parent / "click_ranks.py"
    spec = importlib.util.spec_from_file_location("autotune_test_click_ranks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def whole(records: list[dict[str, Any]], state: str = "final") -> dict[str, torch.Tensor]:
    """All weights and the optimizers' states, whatever the number of ranks."""
    found = {}
    for part in ("table", "dense"):
        for name in ("weight", "state"):
            values = [record[state][part][name] for record in records]
            if isinstance(values[0], dict):
                values = [torch.cat([value["local"] for value in values])]
            found[f"{part} {name}"] = values[0]
    return found


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max((a[k] - b[k]).abs().max().item() for k in a if a[k].numel())


# --- synchronous ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model": "wide_deep", "batch_size": 33, "microbatch": 5},
        {"optimizer_sparse": "sparse_adam", "lr_sparse": 0.01},
        {"optimizer_sparse": "sgd", "lr_sparse": 1.0, "optimizer": "sgd", "lr": 0.1},
        {
            "optimizer": "adagrad",
            "lr": warmed(Linear(0.05, 0.01), 0.1),
            "batch_size": Linear(3, 90),
        },
    ],
    ids=["rowwise_adagrad", "uneven microbatches", "sparse_adam", "sgd", "schedules"],
)
def test_two_ranks_equal_one_on_the_union_of_their_batches(
    config: dict[str, Any], own: ModuleType, on_two_ranks: Any
) -> None:
    config = {"data": "generated", **config}
    alone, ranks = own.record(config, 2), on_two_ranks(config, 2)
    assert distance(whole(ranks), whole([alone])) < 1e-5
    for rank in ranks:
        assert rank["steps"] == alone["steps"]
        for found, wanted in zip(rank["metrics"], alone["metrics"], strict=True):
            for key in ("val_auc", "val_loss", "lr", "lr_sparse", "batch_size", "progress"):
                assert found[key] == pytest.approx(wanted[key], rel=1e-4), key
        last = rank["metrics"][-1]
        assert last["train_loss"] == pytest.approx(alone["metrics"][-1]["train_loss"], rel=1e-4)
        assert last["staleness_mean"] == last["staleness_max"] == 0
        assert rank["threads"] == []


def test_it_goes_on_bit_for_bit_and_on_another_number_of_ranks(
    own: ModuleType, on_two_ranks: Any, same: Any
) -> None:
    config = {"data": "generated", "optimizer_sparse": "sparse_adam"}
    ranks = on_two_ranks(config, 3, save_at=1)
    states = [rank["saved"] for rank in ranks]
    rest = on_two_ranks(config, 2, restore=states)
    assert all(same(a["final"], b["final"]) for a, b in zip(rest, ranks, strict=True))
    assert rest[0]["steps"] == ranks[0]["steps"][1:]
    alone = own.record(config, 2, restore=states)
    assert distance(whole([alone]), whole(ranks)) < 1e-5
    one = own.record(config, 3, save_at=1)
    again = on_two_ranks(config, 2, restore=[one["saved"]])
    assert distance(whole(again), whole([one])) < 1e-5


def test_a_change_turns_both_rates_the_batch_and_beta1_and_is_kept(own: ModuleType) -> None:
    change = Change(lr_factor=0.5, batch_size=32, momentum=0.5)
    found = own.record(GOOD, 3, changes={0: change}, save_at=1)
    usual = own.record(GOOD, 0)["metrics"][0]
    for metrics in found["metrics"][1:]:
        assert metrics["lr"] == pytest.approx(usual["lr"] / 2)
        assert metrics["lr_sparse"] == pytest.approx(usual["lr_sparse"] / 2)
        assert (metrics["batch_size"], metrics["momentum"]) == (32, 0.5)
    rest = own.record(GOOD, 2, restore=[found["saved"]])
    assert distance(whole([rest]), whole([found])) == 0


def test_the_last_milestone_is_the_end_of_max_epochs(own: ModuleType) -> None:
    trainer = clicks.train({**own.FAST, "max_epochs": 0.4})
    assert [milestone.step for milestone in trainer] == [0, 512, 832]


# --- the other ways of updating -------------------------------------------------------------------


@pytest.mark.parametrize("update", UPDATES[1:])
def test_staleness_is_bounded_and_ranks_agree_at_milestones(
    update: str, own: ModuleType, on_two_ranks: Any, same: Any
) -> None:
    bound = {"asynchronous": {"staleness_bound": 2}}.get(update, {"push_every": 3})
    config = {"data": "generated", "sparse_update": update, **bound}
    ranks = on_two_ranks(config, 3, save_at=1)
    assert same(*(rank["final"]["dense"] for rank in ranks))
    for rank in ranks:
        assert rank["steps"] == [0, 512, 1024, 1536]
        assert rank["threads"] == []
        for metrics in rank["metrics"][1:]:
            most = metrics["staleness_max"]
            assert 0 <= metrics["staleness_mean"] <= most <= 2
    assert ranks[0]["metrics"][-1]["val_auc"] > 0.6
    rest = on_two_ranks(config, 2, restore=[rank["saved"] for rank in ranks])
    saved = whole(ranks, "saved")
    alone = own.record(config, 0, restore=[rank["saved"] for rank in ranks])
    assert distance(whole([alone]), saved) == 0
    if update == "geo_sgd":  # repeatable, unlike the others
        assert all(same(a["final"], b["final"]) for a, b in zip(rest, ranks, strict=True))
        assert rest[0]["metrics"][1]["staleness_max"] == 2


@pytest.mark.parametrize("update", ["asynchronous", "geo_sgd"])
def test_on_one_rank_nothing_is_stale(update: str, own: ModuleType) -> None:
    found = own.record({**GOOD, "sparse_update": update}, 2)
    wanted = own.record(GOOD, 2)
    assert distance(whole([found]), whole([wanted])) == 0
    assert found["metrics"][-1]["staleness_max"] == 0


def test_one_geo_step_is_the_mean_of_the_ranks_that_touch_a_row(
    own: ModuleType, on_two_ranks: Any
) -> None:
    """With SGD, of rows that one rank alone touches its own step, on twice the share's mean."""
    config = {
        "data": "generated",
        "sparse_update": "geo_sgd",
        "push_every": 1,
        "optimizer_sparse": "sgd",
        "optimizer": "sgd",
        "milestone": 64,
        "lr": 0.1,
    }
    both = whole(on_two_ranks(config, 1))
    exact = whole([own.record({**config, "sparse_update": "synchronous", "push_every": 8}, 1)])
    assert (both["dense weight"] - exact["dense weight"]).abs().max() < 1e-6
    begun = whole([own.record(config, 0)])["table weight"]
    moved, wanted = both["table weight"] - begun, exact["table weight"] - begun
    touched = wanted.abs().sum(1) > 0
    assert torch.equal(touched, moved.abs().sum(1) > 0)
    ratio = moved[touched].norm(dim=1) / wanted[touched].norm(dim=1)
    alone = (ratio - 2).abs() < 1e-2
    shared = (moved - wanted).abs().max(1).values[touched] < 1e-6
    assert alone.any()
    assert shared.any()
    assert (alone | shared).all()


def test_hogwild_trains_on_threads_of_a_rank_and_leaves_none(own: ModuleType) -> None:
    config = {**GOOD, "sparse_update": "hogwild", "hogwild_workers": 3, "push_every": 4}
    found = own.record(config, 3)
    assert found["threads"] == []
    assert found["metrics"][-1]["staleness_max"] < 4
    assert found["metrics"][-1]["train_loss"] < found["metrics"][1]["train_loss"]


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["synchronous", "geo_sgd"])
def test_ranks_read_files_of_their_own_and_go_on_bit_for_bit(
    update: str, own: ModuleType, on_two_ranks: Any, same: Any, tmp_path: Path
) -> None:
    for name, count in (("train/a", 700), ("train/b", 500), ("train/c", 300), ("val/a", 200)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        fields = ([str(n % 2), *[str(n % 7)] * 13, *["abc"[n % 2]] * 26] for n in range(count))
        (tmp_path / name).write_text("".join("\t".join(line) + "\n" for line in fields))
    config = {
        "data": "criteo",
        "data_dir": str(tmp_path),
        "train_size": None,
        "reader_threads": 2,
        "milestone": 640,
        "shuffle_buffer": 100,
        "sparse_update": update,
        "width": 2,
    }
    ranks = on_two_ranks(config, 4, save_at=1)
    assert ranks[0]["metrics"][-1]["val_auc"] == 1
    assert all(rank["threads"] == [] for rank in ranks)
    assert ranks[0]["saved"]["taken"] == [320, 320]
    states = [rank["saved"] for rank in ranks]
    rest = on_two_ranks(config, 3, restore=states)
    assert all(same(a["final"], b["final"]) for a, b in zip(rest, ranks, strict=True))
    alone = own.record(config, 1, restore=states)
    assert alone["steps"] == [640, 1280]


def test_a_warm_up_that_fails_leaves_no_thread_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        line = "\t".join(["1", *["2"] * 13, *["a"] * 26]) + "\n"
        (tmp_path / name / "a").write_text(line * 5000)

    def full(loop: clicks.Loop) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(clicks.Loop, "_warm_up", full)
    given = {**GOOD, "data": "criteo", "data_dir": str(tmp_path), "train_size": None}
    with pytest.raises(RuntimeError, match="out of memory"):
        next(clicks.train({**given, "seed": 1}))
    assert not [thread for thread in threading.enumerate() if thread.name == "clicks-reader"]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"sparse_updates": "hogwild"}, r"unknown key 'sparse_updates'.*mean 'sparse_update'"),
        ({"sparse_update": "async"}, "sparse_update must be one of synchronous, asynchronous, geo"),
        ({"staleness_bound": 2}, "staleness_bound 2 needs sparse_update asynchronous"),
        ({"push_every": 2}, "push_every 2 needs sparse_update geo_sgd or hogwild"),
        ({"hogwild_workers": 3, "sparse_update": "geo_sgd"}, "hogwild_workers 3 needs sparse_upd"),
        (
            {"staleness_bound": 0, "sparse_update": "asynchronous"},
            "staleness_bound must be a whole",
        ),
        ({"optimizer_sparse": "adam"}, "optimizer_sparse must be one of sparse_adam, rowwise_adag"),
        ({"optimizer": "sgd", "beta1": 0.5}, "beta1 needs optimizer adam or optimizer_sparse"),
        ({"reader_threads": 2}, "reader_threads 2 needs data criteo"),
        ({"shuffle_buffer": 2}, "shuffle_buffer 2 needs data criteo"),
        ({"data_dir": "x"}, "data_dir 'x' needs data criteo"),
        ({"data": "criteo"}, "data_dir is missing from the configuration, with data criteo"),
        ({"data": "criteo", "data_dir": "x", "train_size": 9}, "train_size 9 needs data generated"),
        ({"data": "avazu"}, "data must be one of generated, criteo, got 'avazu'"),
        ({"lr": Linear(0.1, -0.1)}, "lr must be a number at least 0, but it goes down to -0.1"),
        ({"width": 0}, "width must be a whole number at least 1, got 0"),
        ({"hash_size": 1}, "hash_size must be a whole number at least 2, got 1"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        clicks.check({**GOOD, **given})
    assert "\n" not in str(caught.value)


def test_a_process_group_without_gloo_is_one_line(own: ModuleType) -> None:
    """As one for GPUs alone; torch's group `fake` stands for it."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(ValueError) as refused:
            next(clicks.train(own.FAST))
    finally:
        dist.destroy_process_group()
    rule = "the process group must have gloo, as 'cpu:gloo,cuda:nccl'"
    assert str(refused.value) == f"{rule}, got 'fake'"


def test_missing_data_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"train has no files; put those of Criteo's form"):
        clicks.check({"data": "criteo", "data_dir": str(tmp_path), "lr": 0.1})


def test_a_state_of_another_table_is_refused(own: ModuleType) -> None:
    state = assemble(own.record(GOOD, 0)["final"], None, 1)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"weight of the table in the shape \(300, 6\).*\(300, 5\)"
    ):
        next(clicks.train({**own.FAST, "width": 5, "state": state}))


def test_too_small_a_batch_is_refused_on_all_ranks(on_two_ranks: Any) -> None:
    for answer in on_two_ranks({"data": "generated", "batch_size": 1}, 1):
        assert answer["error"] == "batch_size must be at least the number of ranks, 2, got 1"


def test_what_the_trainer_says_of_its_keys() -> None:
    assert clicks.train.effects["sparse_update"] == "both"  # type: ignore[attr-defined]
    assert clicks.train.effects["staleness_bound"] == "both"  # type: ignore[attr-defined]
    assert {*clicks.train.effects} <= {*KEYS}  # type: ignore[attr-defined]
    assert {*clicks.train.memory_keys} <= {*KEYS}  # type: ignore[attr-defined]
    assert {*KNOBS} <= {*clicks.train.effects}  # type: ignore[attr-defined]
    assert read_settings(GOOD).sparse.lr(0.5) == 0.01
    assert all(f"`{key}`" in (clicks_doc or "") for key in KEYS)


clicks_doc = importlib.import_module("trainers.click_settings").__doc__
