"""A study over all four kinds of schedule: searched, honoured, shown, replayed exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import autotune as at
from autotune.cli import main
from autotune.tracking import mirror

RECIPE = """
from dataclasses import replace
import autotune as at
from search_spaces import digits

def recipe():
    usual = digits.schedules()
    entries = dict(usual.space.entries)
    for name, family in (("batch_size", "staircase"), ("image_size", "staircase"),
                         ("momentum", "mirror"), ("lr", "one_cycle")):
        entries[name] = replace(entries[name], family=family)
    fixed = {"width": 8, "milestone": 1280, "horizon": 12.0}
    entries |= {name: at.Fixed(value) for name, value in fixed.items()}
    baseline = {
        "batch_size.knots": 1, "batch_size.edge1": 0.4, "batch_size.levels1": 4,
        "image_size.edge1": 0.3, "image_size.levels1": 2,
        "momentum.peak": 0.95, "momentum.final": 0.9,
        "lr.peak": 1.0, "lr.final": 0.01, "lr.peak_at": 0.3, "lr.rule": "sqrt",
        "weight_decay": 5e-4, "label_smoothing": 0.05,
    }
    target = at.Target("val_accuracy", 0.9, limit=250.0)
    space = at.SearchSpace(entries)
    return replace(usual, name="all-four", space=space, target=target, baseline=baseline,
                   scaling=at.Scaling())
"""
KNOBS = ("lr", "batch_size", "momentum", "image_size")
HERE = ("--backend", "local", "--max-concurrent-trials", "1")  # no process has to start


@pytest.mark.slow
def test_a_study_over_all_four_kinds_of_schedule(
    tmp_path: Path,
    with_store: Callable[[Path], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(mirror, "_WAIT_SECONDS", 900.0)  # a busy machine's MLflow may be behind
    (tmp_path / "recipe.py").write_text(RECIPE)
    folder, out = with_store(tmp_path / "study"), tmp_path / "best"
    run = ["run", f"{tmp_path / 'recipe.py'}:recipe", "--trials", "2", "--out", str(folder)]
    assert main.main([*run, *HERE, "--json"]) == 0
    best = at.load_study(folder).best
    for knob in KNOBS:
        schedule = best.config[knob]
        assert isinstance(schedule, at.schedules.Schedule)
        assert at.extremes(schedule)[0] < at.extremes(schedule)[1]
    check_honoured(best)
    assert "MLflow is behind" not in capsys.readouterr().err
    check_pictures(folder, best)

    capsys.readouterr()
    assert main.main(["export", str(folder), "--to", str(out)]) == 0
    replay = ["replay", str(out), "--repeats", "1", "--out", str(tmp_path / "again")]
    assert main.main([*replay, *HERE, "--tracking-uri", "off", "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed["identical"] is True, printed["first_difference"]
    assert printed["milestones"] == len(best.reports) - 1  # the first has no metrics


def check_honoured(trial: at.Trial) -> None:
    """What the trainer says of its knobs is what the schedules say at that many samples."""
    horizon = trial.config["horizon"] * 1078  # images of digits
    assert len(trial.reports) > 3
    for report in trial.reports[1:]:
        progress = min(report.step / horizon, 1.0)
        for knob in KNOBS:
            value = trial.config[knob](progress)
            value = round(value) if knob in ("batch_size", "image_size") else value
            assert report.metrics[knob] == pytest.approx(value, rel=1e-12), (knob, report.step)


def check_pictures(folder: Path, best: at.Trial) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'all-four'")
    runs = {r.info.run_name: r for r in client.search_runs([experiment.experiment_id])}
    child = runs["baseline" if best.kind == "baseline" else f"trial-{best.number:04d}"]
    for run, picture in ((child, "schedules.png"), (runs["all-four"], "best_schedules.png")):
        names = {a.path: a.file_size for a in client.list_artifacts(run.info.run_id)}
        assert names[picture] > 5000
    params = child.data.params
    assert params["lr"] == str(best.config["lr"])
    shown = client.get_metric_history(child.info.run_id, "batch_size")
    assert {m.value for m in shown} == {r.metrics["batch_size"] for r in best.reports[1:]}
