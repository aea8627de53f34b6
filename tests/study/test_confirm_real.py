"""Confirmations of a real trainer, by the command line: at the end of a run, and killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune as at
from autotune.algorithms.ranking.repeats import confirming
from autotune.cli import main
from autotune.storage import journal
from autotune.storage.journal import JOURNAL
from autotune.trial import Ended, Interrupted, Started, Suggested

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
    target = at.Target("val_accuracy", 0.9, limit=600)
    scaling = at.Scaling(max_concurrent_trials=2)
    return at.Experiment("toy", train, space, target, baseline={"speed": 0.1}, scaling=scaling)
"""

LUCKY = """
import time
from pathlib import Path

import autotune as at

LOG = Path(__file__).with_name("log")

def train(config):
    runs = LOG.read_text().split() if LOG.exists() else []
    LOG.write_text(" ".join([*runs, config["kind"]]))
    lucky = config["kind"] == "lucky" and "lucky" not in runs
    nap = 0.01 if lucky else {"baseline": 0.04, "steady": 0.06, "lucky": 0.2}[config["kind"]]
    state = {"kind": config["kind"]}
    for step in range(0, 60, 10):
        yield at.Milestone(step, lambda now=step: {"val_accuracy": now / 50}, lambda: state)
        time.sleep(nap)

train.saved = lambda config, states: {"state": states[0]}

def recipe():
    space = at.SearchSpace({"kind": at.Choice(["baseline", "steady", "lucky"])})
    target = at.Target("val_accuracy", 0.9, limit=60)
    return at.Experiment("lucky", train, space, target, baseline={"kind": "baseline"},
                         configs=[{"kind": "lucky"}, {"kind": "steady"}])
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
        if isinstance(event, Ended | Interrupted):
            running.discard(event.trial)


def test_the_confirmed_best_has_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever finalist it is: the one that was fastest in the search was lucky."""
    (tmp_path / "recipe.py").write_text(LUCKY)
    folder = tmp_path / "study"
    asked = ["--backend", "local", "--tracking-uri", "off", "--experience", "off", "--json"]
    asked += ["--out", str(folder), "--pruner", "none", "--max-concurrent-trials", "1"]
    recipe = f"{tmp_path / 'recipe.py'}:recipe"
    assert main.main(["run", recipe, "--trials", "3", "--repeats", "1", *asked]) == main.DONE
    out, err = capsys.readouterr()
    best = json.loads(out)["best"]
    assert "no best_model.pt" not in err
    model = torch.load(folder / "best_model.pt", weights_only=True)
    assert model["state"] == {"kind": best["config"]["kind"]}
    left = [path.name for path in (folder / "checkpoints").iterdir()]
    assert left == [f"trial-{best['trial']:04d}"], "the others are not needed any more"


@pytest.mark.slow
def test_a_run_that_confirms_its_winners(
    recipe: str,
    tmp_path: Path,
    with_store: Callable[[Path], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = with_store(tmp_path / "study")
    asked = ["--out", str(folder), "--backend", "local", "--json", "--sampler", "random"]
    assert main.main(["run", recipe, "--trials", "3", "--repeats", "2", *asked]) == main.DONE
    status = json.loads(capsys.readouterr().out)
    again = [t for t in status["trials"] if t["kind"] == "confirm"]
    assert sum(status["counts"].values()) == 3
    fresh = {t["seed"] for t in again}
    assert len(fresh) == 2, "one a round"
    assert not fresh & {t["seed"] for t in status["trials"] if t["kind"] != "confirm"}
    assert {c["runs"] for c in status["confirmed"]} == {2}
    assert len(again) == 2 * len(status["confirmed"])
    best = status["best"]["confirmed"]
    assert best == status["confirmed"][0]
    assert best["mean_seconds"] == pytest.approx(sum(best["seconds"]) / 2)
    assert status["confirmed_speedup_vs_baseline"] > 0
    alone(folder)
    found = at.load_study(folder)
    search = {p for t in found.searched for p in pids(t)}
    assert {p for t in confirming(found.trials) for p in pids(t)} <= search, "on the warm groups"
    assert all(seeds(t) == {t.seed} for t in confirming(found.trials))
    shown_by_mlflow(folder, status)

    size = (folder / JOURNAL).stat().st_size
    asked = ["confirm", str(folder), "--repeats", "2", "--tracking-uri", "off"]
    assert main.main(asked) == main.DONE
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


def shown_by_mlflow(folder: Path, status: Any) -> None:
    """Also: each confirmation's run names what it repeats."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    end, found = time.monotonic() + 600, list[Any]()
    while time.monotonic() < end and len(found) <= len(status["trials"]):
        experiment = client.get_experiment_by_name("toy")
        found = client.search_runs([experiment.experiment_id]) if experiment else []
        time.sleep(0.2)
    tags = {r.data.tags.get("autotune.trial"): r.data.tags for r in found}
    for trial in status["trials"]:
        repeats = tags[str(trial["trial"])].get("autotune.repeats")
        assert repeats == (None if trial["repeats"] is None else str(trial["repeats"]))
        assert tags[str(trial["trial"])]["autotune.kind"] == trial["kind"]
    parent = next(r for r in found if r.data.tags["autotune.kind"] == "study")
    mean = status["best"]["confirmed"]["mean_seconds"]
    assert parent.data.metrics["confirmed_mean_seconds"] == pytest.approx(mean)
