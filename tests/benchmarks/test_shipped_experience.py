"""The experience that is shipped, and the script that makes it."""

from __future__ import annotations

import getpass
import gzip
import importlib
import json
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from autotune.algorithms.experience.known_task import MARKS, log_times
from autotune.space.parameters import is_real
from autotune.study.experience import document
from autotune.study.experience.summary import public

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "autotune" / "data" / "experience.json.gz"
EPOCHS, ROWS = 12, 40


@pytest.fixture
def maker(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("shipped_experience")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with tables of the right form: the nearer the rate to 0.01, the sooner it learns."""
    folder = tmp_path / "data"
    (folder / "taskset").mkdir(parents=True)
    rng = np.random.default_rng(0)
    rates = np.exp(rng.uniform(np.log(1e-4), np.log(1e-1), ROWS))
    worth = np.exp(-np.abs(np.log(rates / 0.01)))[:, None]
    curves = 100 * worth * (1 - 0.8 ** np.arange(1, EPOCHS + 1))
    names = ("learning_rate", "momentum", "weight_decay", "max_dropout")
    columns = {f"cfg_{name}": rng.random(ROWS) for name in names}
    columns |= {"cfg_batch_size": 2 ** rng.integers(4, 9, ROWS)}
    columns |= {
        "cfg_num_layers": rng.integers(1, 5, ROWS),
        "cfg_max_units": rng.integers(64, 1024, ROWS),
    }
    columns["cfg_learning_rate"] = rates
    times = np.cumsum(rng.uniform(0.5, 1.5, (2, ROWS, EPOCHS)), axis=2)
    np.savez(
        folder / "lcbench_dev.npz",
        val_accuracy=np.stack([curves, curves[::-1]]),
        time=times,
        tasks=np.array(["1", "2"]),
        **columns,
    )
    settings = ("beta1", "beta2", "epsilon", "l1", "l2", "linear_decay", "exponential_decay")
    rows = [
        {
            "hp": {"learning_rate": float(rate), **dict.fromkeys(settings, 0.5)},
            "valid": {"loss": [1.0, *(1 - curve / 100).tolist()]},
        }
        for rate, curve in zip(rates, curves, strict=True)
    ]
    rows[0]["valid"]["loss"][3:] = [None] * (EPOCHS - 2)
    text = json.dumps(rows).encode()
    (folder / "taskset" / "GRU_bs128.json.gz").write_bytes(gzip.compress(text))
    return folder


def test_the_script_makes_a_valid_file(maker: ModuleType, data: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.json.gz", "two.json.gz", "other.json.gz")]
    for file, seed in zip(files, ("0", "0", "1"), strict=True):
        options = ["--data", str(data), "--out", str(file), "--seed", seed, "--trials", "30"]
        maker.main([*options, "--sources", "lcbench,taskset"])
    one, two, other = (file.read_bytes() for file in files)
    assert one == two != other
    found = document.read(files[0])
    assert [study.name for study in found] == ["lcbench-1", "lcbench-2", "taskset-GRU_bs128"]
    assert [len(study.points) for study in found] == [30, 30, 30]
    check_content(files[0])
    for study in found:
        assert 1 <= study.reached <= 3
        task = study.task()
        fast = task.points[int(log_times(task)[:, 0].argmin())]
        assert {"lr", "momentum", "effective_lr", "weight_decay", "optimizer"} <= fast.keys()
    best = found[0].task()
    assert 0.003 < best.points[int(np.nanargmax(best.curves[:, -1]))]["lr"] < 0.03
    assert found[2].target["mode"] == "min"
    assert found[2].target["value"] > 0 > found[2].curves[0][-1]


def test_the_benchmark_recognises_what_is_shipped_by_its_content(
    maker: ModuleType, data: Path, tmp_path: Path
) -> None:
    """Under another name too, with rounded numbers, and with names that the table has not."""
    file = tmp_path / "made.json.gz"
    maker.main(["--data", str(data), "--out", str(file), "--sources", "lcbench"])
    known = [replace(study.task(), name="other") for study in document.read(file)]
    sources, problems = (importlib.import_module(f"_few_{n}") for n in ("sources", "problems"))
    under_test = problems.recorded_task(str(data / "lcbench_dev.npz"), 0)
    assert [sources.same_content(under_test, task) for task in known] == [True, False]
    points = [{"optimizer": "sgd"} for _ in known[0].points]
    assert not sources.same_content(under_test, replace(known[0], points=points))


def test_a_table_that_is_missing_is_left_out(
    maker: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made.json.gz"
    maker.main(["--data", str(tmp_path), "--out", str(out), "--sources", "lcbench,taskset"])
    assert capsys.readouterr().out.count("left out") == 2
    assert document.read(out) == []
    with pytest.raises(SystemExit) as ended:
        maker.main(["--data", str(tmp_path), "--sources", "lcbensh"])
    assert ended.value.code == 2
    assert "some of lcbench,taskset,farm,recipes but got 'lcbensh'" in capsys.readouterr().err


def test_what_was_trained_is_kept_and_goes_on(
    maker: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial does not depend on how many calls trained the study, nor on its neighbours."""
    farm = importlib.import_module("_farm_studies")
    (task,) = (replace(t, limit=16.0) for t in farm.tasks() if t.name == "digits-few")
    own = [farm.FarmStudy(task, task._load(), adaptive) for adaptive in (False, True)]
    for name, counts in (("whole", (3,)), ("parts", (1, 3))):
        text = ["--data", str(tmp_path), "--cache", str(tmp_path / name), "--sources", "farm"]
        for most in counts:
            assert maker.trained(own, most, 2, maker.parsed(text)) == []  # three tell too little
    kept, again = (
        [json.loads((tmp_path / name / f"{s.study.name}.json").read_text()) for s in own]
        for name in ("parts", "whole")
    )
    for parts, whole, study in zip(kept, again, own, strict=True):
        assert [parts[key] for key in ("points", "values")] == [
            whole[key] for key in ("points", "values")
        ]
        (first, *_) = parts["points"]
        assert first["optimizer"] in (("adamw",) if study.adaptive else ("sgd", "lars"))
        (drawn,) = study.space().sample(1, seed=study.study.seeded(0))
        steps = drawn["horizon"] * 16 / (1 + first["batch_size"] / 64)
        assert first["epochs"] == pytest.approx(steps * first["batch_size"] / 300, rel=1e-3)
        assert "horizon" not in first, "it is a share of the limit here, and epochs elsewhere"
        assert all(max(seconds) <= 16 for seconds in parts["seconds"])
    assert "3 trials" in capsys.readouterr().out


def test_the_time_to_the_target_is_the_first_reading_that_meets_it(maker: ModuleType) -> None:
    recorded = importlib.import_module("_recorded")
    study = recorded.Study("a", "t", "accuracy", "max", 10.0, share=0.5)
    curves = recorded.Curves()
    curves.add({"lr": 1}, [2.0, 4.0, 8.0, 20.0], [0.5, 0.8, 0.9, 1.0])
    curves.add({"lr": 2}, [1.0, 2.0, 5.0], [0.7, float("nan"), 0.6])
    found = recorded.summary(study, curves)
    assert (found.target["value"], found.times, found.ended) == (0.7, [0.4, 0.1], [1.0, 1.0])
    unseen = [sum(v is None for v in curve) for curve in found.curves]
    assert unseen == [int((MARKS < 0.2).sum()), int((MARKS < 0.1).sum())]
    assert [curve[-1] for curve in found.curves] == [0.9, 0.7]


def test_a_recipe_is_trained_by_its_own_trainer(
    maker: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = importlib.import_module("_recipe_studies")
    monkeypatch.setenv("AUTOTUNE_DATA", "of another test")
    threads = torch.get_num_threads()
    try:
        found = list(small.studies(tmp_path, ("sgd", "lamb")))
        assert [own.recipe for own in found] == [
            "search_spaces.digits:sgd",
            "search_spaces.digits:lamb",
        ]
        assert capsys.readouterr().out.count("left out") == 3  # no data; shakespeare has no sgd
        own = replace(found[0], small=replace(found[0].small, limit=0.01))
        curves = importlib.import_module("_recorded").Curves()
        own.extend(curves, 2, seed=1)
    finally:
        torch.set_num_threads(threads)
    params = own.experiment.space.sample(2, seed=1)
    assert own.study.name == "small-digits-sgd"
    for point, drawn, values in zip(curves.points, params, curves.values, strict=True):
        rate = own.experiment.space.config(drawn)["lr"]
        assert point["lr"] == pytest.approx(max(map(rate, np.linspace(0, 1, 2001))), rel=0.01)
        assert point["effective_lr"] == pytest.approx(
            point["lr"] / (1 - drawn["momentum"]), rel=0.01
        )
        assert point["epochs"] == pytest.approx(drawn["horizon"], rel=1e-3)
        assert (point["optimizer"], "data" in point) == ("sgd", False)
        assert 0 < values[0] < 1


def test_adamw_is_that_of_torch(maker: ModuleType) -> None:
    networks, adaptive = (importlib.import_module(name) for name in ("_networks", "_adaptive"))
    shapes = networks.Layout(((6, 4), (4,), (4, 10), (10,)))
    rng = torch.Generator().manual_seed(0)
    flat = torch.randn(sum(shapes.sizes), generator=rng) * 0.3
    inputs = torch.randn(5, 1, 6, generator=rng)
    wanted = -torch.eye(10)[:5] / 5
    weights = [part.clone().requires_grad_() for part in shapes.tensors(flat)]
    decay = {0.1: weights[::2], 0.0: weights[1::2]}
    groups = [{"params": own, "weight_decay": share} for share, own in decay.items()]
    theirs = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95))
    moments = torch.zeros(adaptive.VECTORS * len(flat))
    for number in range(1, 6):
        theirs.zero_grad()
        whole = torch.cat([w.reshape(-1) for w in weights])
        networks.loss(shapes, whole, inputs, wanted).backward()
        theirs.step()
        settings = torch.tensor([0.01, 0.8, 0.1, 0.0, 1.0, 0.95, number])
        flat, moments = adaptive.adamw(shapes, flat, moments, (inputs, wanted), settings)
    assert torch.allclose(flat, torch.cat([w.detach().reshape(-1) for w in weights]), atol=1e-6)
    settings[4] = 0.0  # a network that waits for others
    for before, after in zip(
        (flat, moments),
        adaptive.adamw(shapes, flat, moments, (inputs, wanted), settings),
        strict=True,
    ):
        assert torch.equal(before, after)


@pytest.mark.skipif(not SHIPPED.exists(), reason="no experience is shipped")
def test_the_shipped_file(maker: ModuleType) -> None:
    assert SHIPPED.stat().st_size <= maker.MOST_BYTES
    check_content(SHIPPED)
    found = document.read(SHIPPED)
    assert len({study.name for study in found}) == len(found) >= 30
    sources = {study.name.partition("-")[0] for study in found}
    assert sources == {"lcbench", "taskset", "farm", "small"}
    small = {study.name.rpartition("-")[2] for study in found if study.name.startswith("small-")}
    assert small == set(maker._OPTIMIZERS)
    for study in found:
        of = study.name if study.name.startswith("small-") else study.name + "-"
        trained = study.name.startswith(("small-", "farm-"))
        assert of.startswith(f"{study.problem}-") if trained else not study.problem, study.name
    for study in found:
        assert len(study.points) >= 5, study.name
        assert study.reached >= 1, study.name
        assert log_times(study.task()).shape[1] >= 1, study.name
        limit = max(time for time in (*study.times, 0.0) if time is not None)
        assert 0 < limit <= 1.001, study.name
        assert study.points == [public(point) for point in study.points], study.name
        assert not any("horizon" in point for point in study.points), study.name


def check_content(file: Path) -> None:
    """It tells nothing of a machine, and its published points are points with a source."""
    text = gzip.decompress(file.read_bytes()).decode()
    names = {socket.gethostname(), getpass.getuser(), str(Path.home()), str(ROOT)} - {"root", "/"}
    assert not [name for name in names if len(name) > 3 and name in text]
    assert not re.search(r'"(/|~|[A-Z]:\\)|/(home|tmp|work|usr|root|var|mnt)/', text)
    assert int.from_bytes(file.read_bytes()[4:8], "little") == 0  # the time in gzip's header
    whole: dict[str, Any] = json.loads(text)
    assert whole.keys() == {"format", "studies", "points"}
    for published in whole["points"]:
        assert published.keys() == {"kind", "name", "source", "points"}
        assert published["kind"] == "points"
        assert published["source"].startswith("https://")
        for point in published["points"]:
            assert isinstance(point["optimizer"], str)
            assert is_real(point["lr"])
