"""Checkpoints of two real ranks: complete or not there, and what happens to damaged ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from saver import saver
from toys import METRIC

import autotune as at
from autotune.storage import journal
from autotune.trial import Interrupted, Saved, State

LARGE = 2 * 2**20
on_ray = pytest.mark.usefixtures("ray_address")  # whose processes are there already


def study(
    folder: Path, config: dict[str, Any], trials: int = 1, backend: str = "local", **policy: Any
) -> at.StudyResult:
    """One configuration `trials` times, each after the other, until step 800 is reached.

    Where processes are killed it is `local`: the next ones start sooner.
    """
    policy = {"hang_timeout": 600, "checkpoint_interval": 0, **policy}
    settings: dict[str, Any] = {
        "log": str(folder / "log"),
        "checkpoints": str(folder),
        **config,
    }
    space = at.SearchSpace({"x": at.Float(0, 1), **{k: at.Fixed(v) for k, v in settings.items()}})
    made = at.Experiment(
        "checkpoints",
        saver,
        space,
        at.Target(METRIC, 0.8, limit=6000),
        scaling=at.Scaling(num_workers=2),
        failure=at.FailurePolicy(**policy),
        baseline={"x": 0.5},
        configs=[{"x": 0.5}] * (trials - 1),
    )
    options = {"tracking_uri": "off", "sampler": "random", "pruner": "none"}
    return at.run(made, trials=trials, out=folder / "study", backend=backend, **options)


def starts(folder: Path) -> list[str]:
    """The steps at which rank 0 began, in their order."""
    rows = [row.split(" ") for row in (folder / "log").read_text().splitlines()]
    return [row[4] for row in rows if row[1] == "0" and row[3] == "start"]


@pytest.mark.soak  # with shards, and with two that are damaged, it is tested more often
@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = study(tmp_path, {"dies": 500, "damage": [damage, 2]})
    trial = result.trials[0]
    assert (trial.state, trial.retries) == (State.REACHED, 1), trial.error
    begun = [int(step) for step in starts(tmp_path)]
    lost = [e for e in journal.read(result.folder) if isinstance(e, Interrupted)]
    assert [e.damaged for e in lost] == [False, True]
    assert begun[0] == 0
    assert begun[-1] == 200, "300 was the last that was written down"
    steps = [r.step for r in trial.reports if r.metrics]
    assert steps == sorted(set(steps)), "no report is there twice"
    assert [r.metrics["w"] for r in trial.reports if r.metrics] == steps
    said = capfd.readouterr().err
    assert "warning: trial 0: the checkpoint at step" in said
    assert f"it goes on from step {begun[-1]}" in said


@pytest.mark.slow
def test_where_both_are_damaged_it_starts_again_from_scratch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = study(tmp_path, {"dies": 500, "damage": ["cut", 9]})
    trial = result.trials[0]
    assert (trial.state, trial.retries, trial.attempts) == (State.REACHED, 1, 4), trial.error
    assert starts(tmp_path)[-1] == "0"
    lost = [e for e in journal.read(result.folder) if isinstance(e, Interrupted)]
    assert [e.damaged for e in lost] == [False, True, True]
    steps = [r.step for r in trial.reports if r.metrics]
    assert steps == list(range(100, 900, 100)), "no report is there twice"
    assert [r.metrics["w"] for r in trial.reports if r.metrics] == steps
    said = capfd.readouterr().err
    assert "warning: trial 0: the checkpoint at step 300 cannot be used" in said
    assert "it goes on from step 200" in said


@on_ray
def test_the_last_two_are_there_while_it_runs_and_the_last_when_it_has_ended(
    tmp_path: Path,
) -> None:
    result = study(tmp_path, {}, backend="ray")
    saved = [e.checkpoint for e in journal.read(result.folder) if isinstance(e, Saved)]
    assert len(saved) > 2
    assert all(len(c.sums) == 2 and c.sums[0].startswith("crc32:") for c in saved)
    last = result.trials[0].checkpoint
    assert last is not None
    assert last.step == 800
    assert sorted(os.listdir(last.path)) == ["rank-0.pt", "rank-1.pt"]
    kept = {p.name for p in Path(last.path).parent.iterdir()}
    assert kept == {f"step-{c.step}" for c in saved[-2:]}


@pytest.mark.slow
def test_a_large_state_is_written_beside_training_and_is_of_one_step(tmp_path: Path) -> None:
    """Killed while some checkpoint is being written: what it goes on from is whole."""
    config = {"numbers": LARGE, "nap": 0.3, "dies": 700}
    result = study(tmp_path, config)
    trial = result.trials[0]
    assert (trial.state, trial.retries) == (State.REACHED, 1), trial.error
    assert trial.checkpoint is not None
    for rank in (0, 1):
        state = torch.load(Path(trial.checkpoint.path) / f"rank-{rank}.pt", weights_only=True)
        assert bool((state["w"] == trial.checkpoint.step).all())


@pytest.mark.slow
def test_so_many_of_the_fastest_are_kept(tmp_path: Path) -> None:
    result = study(tmp_path, {}, trials=4, keep_checkpoints=2)
    assert all(t.state is State.REACHED for t in result.trials)
    fastest = sorted(result.trials, key=lambda t: t.seconds)[:2]
    left = sorted(p.name for p in (result.folder / "checkpoints").iterdir())
    assert left == sorted(f"trial-{t.number:04d}" for t in fastest)


@pytest.mark.slow
def test_checkpoints_behind_a_url(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    result = study(tmp_path, {"dies": 500}, checkpoint_folder=url)
    trial = result.trials[0]
    assert (trial.state, trial.retries) == (State.REACHED, 1), trial.error
    assert int(starts(tmp_path)[-1]) > 0
    assert trial.checkpoint is not None
    assert trial.checkpoint.path.startswith(f"{url}/checkpoints-")
    assert not (result.folder / "checkpoints").exists()
    (own,) = (tmp_path / "bucket").iterdir()
    assert [p.name for p in own.iterdir()] == ["trial-0000"]


@on_ray
@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_where_checkpoints_cannot_be_written_training_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, and no folder")
    result = study(tmp_path, {}, backend="ray", checkpoint_folder=str(blocked))
    trial = result.trials[0]
    assert (trial.state, trial.attempts, trial.checkpoint) == (State.REACHED, 1, None)
    assert "warning: trial 0: no checkpoint: Not a dir" in capfd.readouterr().err


def test_a_url_of_nobody_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(at.UserError, match="checkpoint_folder 'nowhere://x' cannot be used"):
        study(tmp_path, {}, checkpoint_folder="nowhere://x")
