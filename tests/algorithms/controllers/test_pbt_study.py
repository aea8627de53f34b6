"""Population-based training of a real trainer: forks, MLflow, kills, export and replay."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import population_driver
import pytest

import autotune as at
from autotune.cli import final, main
from autotune.cli.console import UNREACHED
from autotune.storage import journal
from autotune.storage.journal import JOURNAL, Closed, Opened
from autotune.study.manifest import Manifest
from autotune.trial import fold

RECIPE = """
import autotune as at
from autotune.algorithms.controllers.pbt import pbt
from trainers.image import train

SPACE = at.SearchSpace({
    "data": at.Fixed("digits"), "model": at.Fixed("mlp"), "milestone": at.Fixed(1078),
    "width": at.Choice([24, 32]), "horizon": at.Fixed(400.0), "nesterov": at.Fixed(True),
    "lr": at.ScheduleSpace(at.Float(0.005, 0.5, log=True), family=at.Choice(["cosine", "linear"])),
    "momentum": at.Float(0.5, 0.95),
    "batch_size": at.Int(32, 128, power_of_two=True),
})
TARGET = at.Target("val_accuracy", 0.999, limit=2.5)
SCALING = at.Scaling(max_concurrent_trials=2)

def recipe():
    return at.Experiment("population", train, SPACE, TARGET, scaling=SCALING)

often = pbt(SPACE, TARGET, interval=0.5)
"""


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory, with_store: Callable[[Path], Path]) -> Path:
    folder = tmp_path_factory.mktemp("population")
    with_store(folder / "study")
    recipe = folder / "recipe.py"
    recipe.write_text(RECIPE)
    run = ["run", f"{recipe}:recipe", "--trials", "10", "--controller", f"{recipe}:often"]
    asked = ["--sampler", "random", "--backend", "local", "--out", str(folder / "study")]
    assert main.main([*run, *asked, "--json"]) == UNREACHED
    return folder / "study"


def forks(folder: Path) -> list[at.Trial]:
    return [t for t in at.load_study(folder).trials if t.origin is not None]


@pytest.mark.slow
def test_forks_go_on_from_their_parents_checkpoint(studied: Path) -> None:
    result = at.load_study(studied)
    trials = {t.number: t for t in result.trials}
    children = forks(studied)
    assert children
    for child in children:
        came = child.origin
        assert came is not None
        parent = trials[came.parent]
        assert trials[came.replaces].reason == "exploited"
        assert child.seed == parent.seed
        assert child.config["width"] == parent.config["width"]
        assert child.attempts == 1
        restored = child.reports[len(came.reports)]
        assert (restored.step, dict(restored.metrics)) == (came.checkpoint.step, {})
        assert restored.seconds == came.reports[-1].seconds == came.checkpoint.clock.train
        own = child.reports[len(came.reports) + 1 :]
        losses = [r.metrics["val_loss"] for r in (came.reports[-1], *own[:1])]
        assert all(loss < 2.0 for loss in losses), "it did not start over"
    own_seconds = sum(t.seconds - t.origin.checkpoint.clock.train for t in children if t.origin)
    own_seconds += sum(t.seconds for t in result.trials if t.origin is None)
    assert result.spent_seconds >= own_seconds * 0.99
    kept = {p.name for p in (studied / "checkpoints").iterdir() if any(p.iterdir())}
    assert kept == set(), "nobody needs a checkpoint once all have ended without reaching"


@pytest.mark.slow
def test_mlflow_names_parent_and_step_and_shows_the_whole_curve(studied: Path) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{studied / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'population'")
    runs = {r.info.run_name: r for r in client.search_runs([experiment.experiment_id])}
    for trial in at.load_study(studied).trials:
        run = runs[f"trial-{trial.number:04d}"]
        if trial.origin is None:
            assert "autotune.parent" not in run.data.tags
            continue
        assert run.data.tags["autotune.parent"] == str(trial.origin.parent)
        assert run.data.tags["autotune.parent_step"] == str(trial.origin.checkpoint.step)
        shown = client.get_metric_history(run.info.run_id, "val_accuracy")
        assert [m.step for m in shown] == [r.step for r in trial.reports if r.metrics]


@pytest.mark.slow
def test_what_a_person_sees(studied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    child = forks(studied)[0]
    assert child.origin is not None
    result = at.load_study(studied)
    final.print_result(result, Manifest.read(studied), sys.stdout)
    assert f"{child.number} from trial {child.origin.parent}" in capsys.readouterr().out
    frame = result.to_frame().set_index("trial")
    assert frame.loc[child.number, "parent"] == child.origin.parent
    assert frame.loc[child.number, "parent_step"] == child.origin.checkpoint.step


@pytest.mark.slow
def test_a_forks_line_of_descent_is_replayed_bit_for_bit(
    studied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The longest line: trained from scratch with its schedules, it sees the same losses."""
    lines = {}
    for trial in forks(studied):
        out = tmp_path / str(trial.number)
        asked = ["export", str(studied), "--trial", str(trial.number), "--to", str(out)]
        assert main.main(asked) == 0
        lines[out] = json.loads((out / "trial.json").read_text())
        assert lines[out]["lineage_fault"] == ""
        assert "whole line of descent" in (out / "README.md").read_text()
    out = max(lines, key=lambda path: len(lines[path]["lineage"]))
    assert len(lines[out]["lineage"]) >= 2
    assert json.loads((out / "schedules.json").read_text()).keys() >= {"lr"}
    capsys.readouterr()
    replay = ["replay", str(out), "--repeats", "1", "--out", str(tmp_path / "again")]
    here = ["--backend", "local", "--max-concurrent-trials", "1"]
    asked = [*here, "--tracking-uri", "off", "--json"]
    assert main.main([*replay, *asked]) == UNREACHED
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["identical"] is True, report["first_difference"]
    last = lines[out]["lineage"][-1]["from_step"]
    again = at.load_study(tmp_path / "again").trials[0]
    assert again.reports[-1].step > last, "the replay went on past the last fork"
    assert report["milestones"] > sum(0 < r["step"] <= last for r in lines[out]["reports"][1:]) / 2


@pytest.mark.soak
def test_a_driver_killed_again_and_again_keeps_the_lineage(bare_ray: str, tmp_path: Path) -> None:
    """What the journal had said stays, and every fork went on from its parent's very state."""
    folder, random, known = tmp_path / "study", Random(5), dict[int, at.Trial]()
    for _ in range(3):
        process = drive(folder, bare_ray)
        wait_for(folder, size(folder) + random.randint(20, 120), process)
        process.kill()
        process.communicate(timeout=900)
        now = trials_of(folder)
        for number, trial in known.items():
            assert (now[number].origin, now[number].config) == (trial.origin, trial.config)
        known = now
    out, error = drive(folder, bare_ray).communicate(timeout=900)
    assert out.strip() == "done", error[-2000:]
    trials = trials_of(folder)
    assert {n: t.origin for n, t in known.items()}.items() <= {
        n: t.origin for n, t in trials.items()
    }.items()
    assert sorted(trials) == list(range(population_driver.TRIALS))
    check_forks(trials)


def check_forks(trials: dict[int, at.Trial]) -> None:
    children = [t for t in trials.values() if t.origin is not None]
    replaced = [t.origin.replaces for t in children if t.origin is not None]
    assert children
    assert len(set(replaced)) == len(replaced)
    assert sorted(replaced) == [n for n, t in trials.items() if t.reason == "exploited"]
    for trial in trials.values():
        assert trial.ended
        done = [r for r in trial.reports if r.metrics]
        assert [r.step for r in done] == list(range(100, done[-1].step + 1, 100))
        assert all(r.metrics["summed"] == r.step for r in done), "no step is lost or done twice"
        assert [r.seconds for r in done] == sorted(r.seconds for r in done)


def trials_of(folder: Path) -> dict[int, at.Trial]:
    return fold([e for e in journal.read(folder) if not isinstance(e, Opened | Closed)])


def drive(folder: Path, address: str) -> subprocess.Popen[str]:
    command = [sys.executable, population_driver.__file__, str(folder), address]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def size(folder: Path) -> int:
    path = folder / JOURNAL
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def wait_for(folder: Path, lines: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 900.0
    while size(folder) < lines and process.poll() is None:
        assert time.monotonic() < end, "the driver does not get on"
        time.sleep(0.01)
