"""Confirmations of a real trainer on Ray, by the command line: at the end of a run, and killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.algorithms.ranking.repeats import confirming
from autotune.cli import main
from autotune.cli.console import result_in
from autotune.storage import journal
from autotune.storage.journal import JOURNAL
from autotune.trial import Ended, Lost, Reported, Started, State, Suggested

RECIPE = """
import os
import time

import autotune as at

def train(config):
    accuracy, step = 0.0, 0
    while True:
        now = {"val_accuracy": accuracy, "seed": config["seed"], "pid": os.getpid()}
        yield at.Milestone(step, lambda now=now: now, lambda: {"step": step})
        time.sleep(0.02)
        accuracy, step = accuracy + config["speed"], step + 10

def recipe():
    space = at.SearchSpace({"speed": at.Float(0.05, 0.5, log=True)})
    target = at.Target("val_accuracy", 0.9, limit=5)
    scaling = at.Scaling(max_concurrent_trials=2)
    return at.Experiment("toy", train, space, target, baseline={"speed": 0.1}, scaling=scaling)
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.py").write_text(RECIPE)
    return f"{tmp_path / 'recipe.py'}:recipe"


def alone(folder: Path) -> None:
    """That each confirmation began when the trial before it had ended."""
    running: set[int] = set()
    confirms: set[int] = set()
    for event in journal.read(folder):
        if isinstance(event, Suggested) and event.repeats is not None:
            confirms.add(event.trial)
        if isinstance(event, Started):
            assert not (running and (event.trial in confirms or running & confirms))
            running.add(event.trial)
        if isinstance(event, Ended | Lost):
            running.discard(event.trial)


def test_a_run_that_confirms_its_winners(
    recipe: str, tmp_path: Path, ray_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    asked = ["--out", str(folder), "--ray-address", ray_address, "--json", "--sampler", "random"]
    assert main.main(["run", recipe, "--trials", "3", "--repeats", "2", *asked]) == main.DONE
    told = json.loads(capsys.readouterr().out)
    again = [t for t in told["trials"] if t["kind"] == "confirm"]
    assert sum(told["counts"].values()) == 3
    fresh = {t["seed"] for t in again}
    assert len(fresh) == 2, "one a round"
    assert not fresh & {t["seed"] for t in told["trials"] if t["kind"] != "confirm"}
    assert {c["runs"] for c in told["confirmed"]} == {2}
    assert len(again) == 2 * len(told["confirmed"])
    best = told["best"]["confirmed"]
    assert best == told["confirmed"][0]
    assert best["mean_seconds"] == pytest.approx(sum(best["seconds"]) / 2)
    assert told["confirmed_speedup_vs_baseline"] > 0
    alone(folder)
    found = result_in(folder)
    search = {p for t in found.searched for p in pids(t)}
    assert {p for t in confirming(found.trials) for p in pids(t)} <= search, "on the warm groups"
    assert all(seeds(t) == {t.seed} for t in confirming(found.trials))
    shown_by_mlflow(folder, told)

    size = (folder / JOURNAL).stat().st_size
    where = ["--ray-address", ray_address]
    assert main.main(["confirm", str(folder), "--repeats", "2", *where]) == main.DONE
    assert (folder / JOURNAL).stat().st_size == size, "there was nothing left to do"
    assert "(2 of 2 reached)" in capsys.readouterr().out
    assert main.main(["best", str(folder)]) == main.DONE
    assert "s to target when it was tuned\n  confirmed: " in capsys.readouterr().out
    assert main.main(["confirm", str(folder), "--repeats", "0"]) == main.USER
    assert "--repeats must be a whole number >= 1 but got 0" in capsys.readouterr().err


def pids(trial: Any) -> set[float]:
    return {r.metrics["pid"] for r in trial.reports if "pid" in r.metrics}


def seeds(trial: Any) -> set[float]:
    return {r.metrics["seed"] for r in trial.reports if "seed" in r.metrics}


def shown_by_mlflow(folder: Path, told: Any) -> None:
    """Also: each confirmation's run names what it repeats."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    end, found = time.monotonic() + 60, list[Any]()
    while time.monotonic() < end and len(found) <= len(told["trials"]):
        experiment = client.get_experiment_by_name("toy")
        found = client.search_runs([experiment.experiment_id]) if experiment else []
        time.sleep(0.2)
    tags = {r.data.tags.get("autotune.trial"): r.data.tags for r in found}
    for trial in told["trials"]:
        repeats = tags[str(trial["trial"])].get("autotune.repeats")
        assert repeats == (None if trial["repeats"] is None else str(trial["repeats"]))
        assert tags[str(trial["trial"])]["autotune.kind"] == trial["kind"]
    parent = next(r for r in found if r.data.tags["autotune.kind"] == "study")
    mean = told["best"]["confirmed"]["mean_seconds"]
    assert parent.data.metrics["confirmed_mean_seconds"] == pytest.approx(mean)


@pytest.mark.slow
def test_killed_in_the_middle_nothing_is_lost_or_counted_twice(
    recipe: str, tmp_path: Path, ray_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    where = ["--ray-address", ray_address, "--tracking-uri", "off"]
    run = ["run", recipe, "--trials", "3", "--sampler", "random", "--out", str(folder)]
    assert main.main([*run, *where]) == main.DONE
    confirm = ["confirm", str(folder), "--repeats", "3", "--top", "1", *where]
    killed = subprocess.Popen([sys.executable, "-m", "autotune", *confirm], cwd=tmp_path,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    until(folder, confirmed=2, reports=2, process=killed)
    killed.kill()
    killed.wait(30)
    before = confirming(result_in(folder).trials)
    assert [t.ended for t in before] == [True, False]
    assert main.main([*confirm, "--json"]) == main.DONE
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {c["runs"] for c in told["confirmed"]} == {3}
    after = confirming(result_in(folder).trials)
    assert after[0] == before[0]
    assert (after[1].seed, after[1].repeats) == (before[1].seed, before[1].repeats)
    assert [t.number for t in after] == list(range(3, 3 + 3 * len(told["confirmed"])))
    assert all(t.state is State.REACHED for t in after)
    lost = [e.trial for e in journal.read(folder) if isinstance(e, Lost)]
    assert lost == [before[1].number]
    alone(folder)

    assert main.main(["confirm", str(folder), "--repeats", "4", "--top", "1", *where]) == main.DONE
    more = confirming(result_in(folder).trials)
    assert more[: len(after)] == after
    assert len(more) == len(after) // 3 * 4


def until(folder: Path, confirmed: int, reports: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until that many confirmations were begun, and the last one has reported so often."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        assert process.poll() is None, "it ended before it could be killed"
        entries = journal.read(folder)
        begun = [e.trial for e in entries if isinstance(e, Suggested) and e.repeats is not None]
        seen = [e for e in entries if isinstance(e, Reported) and begun and e.trial == begun[-1]]
        if len(begun) >= confirmed and len(seen) >= reports:
            return
        time.sleep(0.005)
    raise AssertionError("the driver does not get on")
