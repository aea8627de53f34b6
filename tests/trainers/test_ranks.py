"""The image trainer on two ranks of a real gloo group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from heads import free_ports

from autotune.schedules import Cosine, Linear, stages, warmed
from autotune.trial import Change

FALLS = Cosine(0.1, 0.01)
ROOT = Path(__file__).parents[2]
PERCEPTRON = {"model": "mlp", "width": 16}
MLP = {**PERCEPTRON, "momentum": 0.5}
NET = {"model": "resnet8", "width": 4, "augment": "crop+flip+cutout", "train_size": 500}


@pytest.mark.parametrize(
    "config",
    [
        MLP,
        {**MLP, "batch_size": 33, "microbatch": 5},
        {**MLP, "batch_size": Linear(3, 60), "horizon": 1, "label_smoothing": 0.1},
        {**NET, "norm": "group", "batch_size": 31, "momentum": 0.5},
        {**MLP, "optimizer": "lars", "lr": 5.0, "trust_coefficient": 0.01, "batch_size": 31},
        {**PERCEPTRON, "optimizer": "nadamw", "lr": 0.01, "batch_size": 31},
        {**MLP, "optimizer": "schedulefree_sgd", "lr": 1.0, "batch_size": 31},
        {**PERCEPTRON, "optimizer": "schedulefree_adamw", "lr": 0.01, "batch_size": 31},
        {**MLP, "batch_size": stages((1, 33), (1, 7), (1, 64)), "horizon": 0.835, "lr": FALLS},
        {**MLP, "batch_size": Linear(3, 61), "horizon": 0.1, "milestone": 300, "lr": FALLS},
    ],
    ids=[
        *("even", "uneven microbatches", "scheduled batch", "convolutions", "lars"),
        *("nadamw", "schedulefree_sgd", "schedulefree_adamw"),
        *("another batch at every milestone", "a horizon within a milestone"),
    ],
)
def test_two_ranks_equal_one_process(
    config: dict[str, Any], record: Any, on_two_ranks: Any, apart: Any
) -> None:
    alone, ranks = record(config, 2), on_two_ranks(config, 2)
    for rank in ranks:
        assert rank["steps"] == alone["steps"]
        assert apart(rank["final"], alone["final"]) < 5e-6
        for found, wanted in zip(rank["metrics"], alone["metrics"], strict=True):
            for key in ("val_accuracy", "val_loss", "lr", "batch_size"):
                assert found[key] == pytest.approx(wanted[key], rel=1e-4)
        shares = [metrics.get("exposed_communication") for metrics in rank["metrics"]]
        assert shares == [metrics.get("exposed_communication") for metrics in ranks[0]["metrics"]]
        assert shares[0] is None
        assert all(0 < share < 1 for share in shares[1:])
        assert "exposed_communication" not in alone["metrics"][-1]
        loss = alone["metrics"][-1]["train_loss"]
        assert rank["metrics"][-1]["train_loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(
    "optimizer", [pytest.param("muon", marks=pytest.mark.slow), "schedulefree_adamw"]
)
def test_ranks_stay_equal_and_go_on_bit_for_bit(
    optimizer: str, record: Any, on_two_ranks: Any, same: Any
) -> None:
    """Muon's steps, in bfloat16, make more of the rounding of gradients than others do."""
    config = {**NET, "optimizer": optimizer, "lr": 0.01, "batch_size": 31}
    whole = on_two_ranks(config, 3, save_at=2)
    for key in whole[0]["final"]["learner"]["model"]:
        if "running" not in key:
            assert same(*(rank["final"]["learner"]["model"][key] for rank in whole)), key
    rest = on_two_ranks(config, 1, restore=[rank["state"] for rank in whole])
    assert all(same(a["final"], b["final"]) for a, b in zip(rest, whole, strict=True))
    alone = record({**config, "norm": "group"}, 2)["metrics"][-1]
    ranks = on_two_ranks({**config, "norm": "group"}, 2)
    assert ranks[0]["metrics"][-1]["train_loss"] == pytest.approx(alone["train_loss"], rel=0.02)


@pytest.mark.parametrize("place", ["loss", "batch"])
@pytest.mark.parametrize("full", [0, 1])
def test_memory_that_runs_out_in_the_warm_up_ends_it_on_all_ranks(
    full: int, place: str, on_two_ranks: Any
) -> None:
    """Neither rank is left waiting for the other, and their process group still works."""
    found = on_two_ranks(MLP, 1, full=full, full_in=place)
    assert "out of memory" in found[full]["error"]
    assert found[1 - full]["error"] == "another rank raised an error"
    assert [found[full]["on_all_ranks"], found[1 - full]["on_all_ranks"]] == ["here", "elsewhere"]
    assert [len(rank["steps"]) for rank in on_two_ranks(MLP, 1)] == [2, 2]


def test_past_a_horizon_within_a_milestone_the_last_values_hold(on_two_ranks: Any) -> None:
    config = {**MLP, "batch_size": Linear(3, 61), "horizon": 0.1, "milestone": 300, "lr": FALLS}
    for rank in on_two_ranks(config, 2):
        assert [m["lr"] for m in rank["metrics"]] == [0.1, 0.01, 0.01]
        assert [m["batch_size"] for m in rank["metrics"]] == [3, 61, 61]
        assert rank["metrics"][1]["progress"] > 2
        assert rank["steps"][2] - rank["steps"][1] in (61 * 4, 61 * 5)


def test_evaluation_is_exact_with_uneven_shards_and_equal_on_all_ranks(
    record: Any, on_two_ranks: Any
) -> None:
    alone = record({**MLP, "val_size": 601}, 0)["metrics"][0]
    one, other = (rank["metrics"][0] for rank in on_two_ranks({**MLP, "val_size": 601}, 0))
    assert one == other
    assert one["val_accuracy"] == alone["val_accuracy"]
    assert one["val_loss"] == pytest.approx(alone["val_loss"], rel=1e-6)
    assert on_two_ranks({**MLP, "val_size": 1}, 0)[0]["metrics"][0]["val_accuracy"] in (0.0, 1.0)


def test_a_restored_run_goes_on_bit_for_bit(on_two_ranks: Any, same: Any) -> None:
    config = {**NET, "lr": warmed(Cosine(0.1, 0.0), 0.1), "horizon": 3}
    changes = {1: Change(lr_factor=0.5, batch_size=45)}
    whole = on_two_ranks(config, 4, changes=changes, save_at=2)
    buffers = [r["state"]["learner"]["model"]["1.running_mean"] for r in whole]
    assert not same(*buffers), "every rank is to keep statistics of its own"
    assert same(*(r["final"]["learner"]["model"]["0.weight"] for r in whole))
    rest = on_two_ranks(config, 2, restore=[r["state"] for r in whole])
    for again, before in zip(rest, whole, strict=True):
        assert again["steps"] == before["steps"][2:]
        assert same(again["final"], before["final"])
        assert again["metrics"][-1]["val_loss"] == before["metrics"][-1]["val_loss"]


def test_closing_frees_the_model_and_its_hooks(on_two_ranks: Any) -> None:
    assert [rank["freed"] for rank in on_two_ranks(NET, 1)] == [True, True]


def test_evaluating_leaves_no_trace(on_two_ranks: Any, same: Any) -> None:
    often, never = on_two_ranks(NET, 3, evaluations=2), on_two_ranks(NET, 3, evaluations=0)
    assert all(same(a["final"], b["final"]) for a, b in zip(often, never, strict=True))


def test_a_batch_smaller_than_the_ranks_is_refused_on_all(on_two_ranks: Any) -> None:
    errors = [rank["error"] for rank in on_two_ranks({**MLP, "batch_size": 1}, 1)]
    assert errors == ["batch_size must be at least the number of ranks, 2, got 1"] * 2


@pytest.mark.slow
def test_the_example_runs_under_torchrun(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "examples/train_alone.py",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stdout.splitlines() if line.startswith("step=")]
    assert len(lines) == 6, "rank 0 alone is to print"
    assert "step=5440 val_accuracy=0.9" in lines[-1]


GROUP_CLOSED = """
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from trainers.parallel.ranks import process_group
from torch import nn, ones

def of_gloo():
    count = 0
    for place in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            count += "gloo" in (place / "comm").read_text()
    return count

os.environ.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
if os.fork() == 0:
    os.environ["RANK"] = "1"
with process_group():
    nn.parallel.DistributedDataParallel(nn.Linear(4, 4))(ones(2, 4)).sum().backward()
    during = of_gloo()
until = time.monotonic() + 300
while of_gloo() and time.monotonic() < until:  # a thread that was joined is listed a moment longer
    time.sleep(0.01)
# In one piece: two ranks write to one pipe.
os.write(1, f"{os.environ['RANK']} {during > 0} {of_gloo()}\\n".encode())
os._exit(0)
"""


@pytest.mark.slow
def test_a_closed_group_has_no_threads_left() -> None:
    """One that frees a tensor of Python's while Python shuts down aborts the process."""
    (port,) = map(str, free_ports(1))
    printed = subprocess.run(
        [sys.executable, "-c", GROUP_CLOSED, port],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    ).stdout
    assert sorted(printed.splitlines()) == ["0 True 0", "1 True 0"]
