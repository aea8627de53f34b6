"""A policy with the real trainer on two real ranks: it acts, is saved, exported and replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import autotune as at
from autotune.algorithms.controllers import weights_file
from autotune.cli import main
from autotune.tracking.mirror import default_uri
from autotune.trial import State

RECIPE = """
import autotune as at
from trainers.image import train

FIXED = {"data": "digits", "model": "mlp", "width": 32, "milestone": 320, "optimizer": "sgd"}
SPACE = at.SearchSpace({
    **{k: at.Fixed(v) for k, v in FIXED.items()},
    "batch_size": at.Fixed(64),
    "momentum": at.Fixed(0.9),
    "lr": at.Float(0.02, 0.05, log=True),
    "horizon": at.Fixed(2.0),
})

def recipe():
    return at.Experiment(
        "digits", train, SPACE, at.Target("val_accuracy", 0.9, limit=60),
        scaling=at.Scaling(num_workers=2, max_concurrent_trials=1),
        baseline={"lr": 0.02}, knobs=("lr", "batch_size", "momentum"),
    )
"""


@pytest.mark.slow
def test_a_study_with_a_policy_and_all_that_comes_of_it(
    ray_address: str,
    tmp_path: Path,
    with_store: Callable[[Path], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE)
    folder, recipe = with_store(tmp_path / "s"), f"{tmp_path / 'recipe.py'}:recipe"
    run = ["run", recipe, "--trials", "4", "--sampler", "random", "--pruner", "none"]
    spec = "policy(setting='robust', every=0.01)"
    assert main.main([*run, "--controller", spec, "--out", str(folder)]) == main.DONE
    trials = at.load_study(folder).trials
    assert not trials[0].changes
    assert all(t.changes for t in trials[1:])
    policy_file = json.loads((folder / weights_file.FILE).read_text())
    assert policy_file["weights"].keys() == {"lr", "batch_size", "momentum"}
    assert policy_file["trials"] == 3

    shown = _artifacts(folder)
    assert shown >= {"controller.json", "controller.png"}

    best = next(t for t in trials[1:] if t.state is State.REACHED)
    out = tmp_path / "out"
    assert main.main(["export", str(folder), "--trial", str(best.number), "--to", str(out)]) == 0
    schedules = json.loads((out / "schedules.json").read_text())
    assert schedules.keys() >= {"lr", "batch_size", "momentum"}
    capsys.readouterr()
    where = ["--out", str(tmp_path / "r"), "--tracking-uri", "off", "--json"]
    assert main.main(["replay", str(out), "--repeats", "1", *where]) == main.DONE
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["identical"] is True, replayed["first_difference"]
    assert not any(t.changes for t in at.load_study(tmp_path / "r").trials)

    more = ["--controller", "policy", "--from", str(folder), "--tracking-uri", "off"]
    assert main.main([*run, *more, "--out", str(tmp_path / "t")]) == main.DONE
    assert json.loads((tmp_path / "t" / weights_file.FILE).read_text())["from_study"] == "digits"
    assert main.main(["resume", str(tmp_path / "t"), "--trials", "5"]) == main.DONE
    assert len(at.load_study(tmp_path / "t").trials) == 5


def _artifacts(folder: Path) -> set[str]:
    """The files on the study's own run."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=default_uri(folder))
    (experiment,) = (e for e in client.search_experiments() if e.name == "digits")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = (r for r in runs if r.info.run_name == "digits")
    return {a.path for a in client.list_artifacts(parent.info.run_id)}
