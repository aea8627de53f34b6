"""A sharded model on two real ranks: what is killed goes on, bit for bit, from all the shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from sharded_trainer import TEXT, sharded
from toys import METRIC

import autotune as at
from autotune.backends.worker.checkpoint_io import restored
from autotune.evaluation import register
from autotune.storage import journal
from autotune.trial import Interrupted, Saved, State
from trainers import language


def study(folder: Path, trials: int = 1, policy: Any = None, **config: Any) -> at.StudyResult:
    """Eight milestones of a small sharded language model, `trials` times one after the other."""
    folder.mkdir(exist_ok=True)
    fixed = {"log": str(folder / "log"), "checkpoints": str(folder), "milestone": 512, **config}
    space = at.SearchSpace({"x": at.Float(0, 1), **{k: at.Fixed(v) for k, v in fixed.items()}})
    made = at.Experiment(
        "sharded",
        sharded,
        space,
        at.Target(METRIC, 0.4, limit=600),
        scaling=at.Scaling(num_workers=2),
        failure=at.FailurePolicy(hang_timeout=600, checkpoint_interval=0, **(policy or {})),
        baseline={"x": 0.5},
        configs=[{"x": 0.5}] * (trials - 1),
    )
    options: dict[str, Any] = {"tracking_uri": "off", "sampler": "random", "pruner": "none"}
    return at.run(made, trials=trials, out=folder / "study", backend="local", **options)


def losses(trial: at.Trial) -> dict[int, float]:
    return {r.step: r.metrics["val_loss"] for r in trial.reports if "val_loss" in r.metrics}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> at.StudyResult:
    """Two trials that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    return study(folder, 2, {"keep_checkpoints": 1})


@pytest.mark.slow
def test_each_rank_writes_its_shard_and_all_are_written_down(whole: at.StudyResult) -> None:
    saved = [e for e in journal.read(whole.folder) if isinstance(e, Saved)]
    assert len(saved) > 4
    assert all(len(e.checkpoint.sums) == 2 for e in saved)
    best = whole.best
    assert best is not None
    assert best.checkpoint is not None
    assert sorted(os.listdir(best.checkpoint.path)) == ["rank-0.pt", "rank-1.pt"]
    parts = [
        torch.load(Path(best.checkpoint.path, f"rank-{r}.pt"), weights_only=True) for r in (0, 1)
    ]
    model = restored(best.checkpoint.path, best.checkpoint.sums)["learner"]["model"]
    for name, tensor in model.items():
        locals_ = [part["learner"]["model"][name]["local"] for part in parts]
        assert torch.equal(torch.cat(locals_), tensor), name
        assert all(part.numel() < tensor.numel() for part in locals_), "a part, and not all of it"


@pytest.mark.slow
def test_a_model_to_be_registered_is_built_of_all_shards(whole: at.StudyResult) -> None:
    best = whole.best
    assert best is not None
    states = register.states(whole.folder, best)
    model, example = language.train.model({**TEXT, "seed": best.seed}, states)  # type: ignore[attr-defined]
    assert best.checkpoint is not None
    saved = restored(best.checkpoint.path)["learner"]["model"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, saved[name]), name
    assert model(example).shape[:2] == example.shape


@pytest.mark.slow
def test_of_the_slower_trial_no_shard_is_left(whole: at.StudyResult) -> None:
    assert [t.state for t in whole.trials] == [State.REACHED] * 2, [t.error for t in whole.trials]
    assert whole.best is not None
    left = os.listdir(whole.folder / "checkpoints")
    assert left == [f"trial-{whole.best.number:04d}"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flipped", pytest.param("gone", marks=pytest.mark.soak)])
def test_a_killed_rank_with_a_damaged_shard_costs_one_checkpoint(
    damage: str, whole: at.StudyResult, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The last that was written down has lost a shard: it goes on from the one before."""
    url = {} if damage == "flipped" else {"checkpoint_folder": f"file://{tmp_path / 'bucket'}"}
    result = study(tmp_path, 1, url, dies=3072, damage=[damage, 2])
    trial = result.trials[0]
    assert (trial.state, trial.retries) == (State.REACHED, 1), trial.error
    assert [e.damaged for e in journal.read(result.folder) if isinstance(e, Interrupted)] == [
        False,
        True,
    ]
    begun = [int(row.split()[1]) for row in (tmp_path / "log").read_text().splitlines()]
    assert begun[0] == 0
    assert 0 < begun[-1] < 2560
    said = capfd.readouterr().err
    assert f"cannot be used ({'Damaged' if damage == 'flipped' else 'FileNotFound'}Error" in said
    assert f"it goes on from step {begun[-1]}" in said
    again, before = losses(trial), losses(whole.trials[0])
    assert again == {step: before[step] for step in again}, "to the last bit"
    assert max(again) == 4096
