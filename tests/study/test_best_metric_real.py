"""The best metric of a real trainer on Ray: the state of its best report, kept and exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import autotune as at
from autotune.cli import main
from autotune.cli.console import DONE
from autotune.trial import State

RECIPE = """
import autotune as at

def train(config):
    state = config.get("state") or {"step": 0}
    for step in range(state["step"], 100, 10):
        value = config["speed"] * (1 - abs(step - 60) / 100)
        yield at.Milestone(step, lambda v=value: {"val_acc": v}, lambda s=step: {"step": s})

def recipe():
    space = at.SearchSpace({"speed": at.Float(0.1, 0.9)})
    target = at.Target("val_acc", limit=600)
    return at.Experiment("toy", train, space, target, scaling=at.Scaling(max_concurrent_trials=1))
"""


@pytest.mark.slow
def test_the_state_of_the_best_report_is_kept_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.py").write_text(RECIPE)
    words = ["run", "recipe.py:recipe", "--trials", "5", "--sampler", "random", "--pruner", "none"]
    where = ["--out", "s", "--tracking-uri", "off", "--ray-address", ray_address]
    assert main.main([*words, *where]) == DONE
    result = at.load_study(tmp_path / "s")
    best = result.best
    assert best is not None
    assert {t.state for t in result.trials} == {State.COMPLETED}
    assert best.config["speed"] == max(t.config["speed"] for t in result.trials)
    folders = [p for p in (tmp_path / "s" / "checkpoints").glob("*/*") if p.is_dir()]
    assert [p.parent.name for p in folders] == [f"trial-{best.number:04d}"]
    assert [p.name for p in folders] == ["step-60"], "only that of the best report"
    assert main.main(["export", "s", "--to", "out"]) == DONE
    assert json.loads((tmp_path / "out" / "trial.json").read_text())["checkpoint_step"] == 60
    state = torch.load(tmp_path / "out" / "checkpoint" / "rank-0.pt", weights_only=True)
    assert state["step"] == 60
    assert "best val_acc 0." in (tmp_path / "out" / "README.md").read_text()
