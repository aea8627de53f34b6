"""Real trainings that begin from another's checkpoint are those from scratch, bit for bit."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import shared_study
import torch

import autotune as at
from autotune.algorithms.shared_work import shared
from autotune.backends.local.pool import LocalPool
from autotune.storage import journal
from autotune.storage.journal import JOURNAL, Closed, Opened
from autotune.trial import Reported, Suggested, Trial, fold

EXACT = ("val_accuracy", "val_loss", "train_loss", "lr", "momentum", "progress")
SECONDS = 900.0  # a guard against hangs


def numbers(metrics: Any) -> dict[str, float]:
    return {name: metrics[name] for name in EXACT if name in metrics}


def weights(trial: Trial) -> dict[str, torch.Tensor]:
    """Those of its last checkpoint."""
    assert trial.checkpoint is not None
    file = min(Path(trial.checkpoint.path).iterdir())
    found: dict[str, torch.Tensor] = torch.load(file, weights_only=True)["learner"]["model"]
    return found


def check(trials: Sequence[Trial], folder: Path, pool: LocalPool | None = None) -> None:
    """That each trial is what its configuration and seed make of it from the first step on."""
    workers = 1 if pool is None else pool.scaling.num_workers
    made = replace(shared_study.experiment(workers), configs=[t.config for t in trials])
    options: dict[str, Any] = {"pruner": "none", "tracking_uri": "off", "progress": False}
    options |= {"trials": len(trials), "seeds": [t.seed for t in trials]}
    options |= {"backend": "local"} if pool is None else {"pool": pool}
    alone = at.run(made, out=folder, **options).trials
    for trial, again in zip(trials, alone, strict=True):
        assert again.origin is None
        assert (trial.config, trial.seed) == (again.config, again.seed)
        own, other = (
            [(r.step, numbers(r.metrics)) for r in t.reports if r.metrics] for t in (trial, again)
        )
        assert own == other
        assert len(own) == 20
        assert trial.checkpoint is not None
        assert again.checkpoint is not None
        assert trial.checkpoint.step == again.checkpoint.step, "of its best"
        mine, others = weights(trial), weights(again)
        assert mine.keys() == others.keys()
        assert all(torch.equal(mine[name], others[name]) for name in mine)


def begins_late(own: Sequence[Trial]) -> None:
    """Of six trials with two beginnings, those that share one."""
    assert len(own) >= 3
    steps = [t.origin.checkpoint.step for t in own if t.origin is not None]
    assert len(steps) == len(own)
    assert min(steps) >= 3 * shared_study.EPOCH


class Kept(LocalPool):
    """Its processes train for one study after another."""

    def close(self) -> None:
        """They end after the last one."""


@pytest.fixture
def two_ranks() -> Iterator[Kept]:
    pool = Kept(shared_study.train, shared_study.experiment(2).scaling)
    yield pool
    LocalPool.close(pool)


@pytest.mark.slow
def test_a_trial_of_two_ranks_from_a_shared_checkpoint_is_the_one_from_scratch(
    two_ranks: Kept, tmp_path: Path
) -> None:
    """One of one rank is in the test of a study that is killed."""
    result = shared_study.run(tmp_path / "study", pool=two_ranks)
    begins_late(shared(result.trials))
    assert len({t.seed for t in result.trials}) == 1
    check(result.trials, tmp_path / "alone", two_ranks)


@pytest.mark.slow
def test_a_study_that_is_killed_as_trials_share_goes_on_to_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    command = [sys.executable, shared_study.__file__, str(folder)]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + SECONDS
    while not trains_on(folder) and killed.poll() is None:
        assert time.monotonic() < end, "no trial shares a beginning"
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout.strip() == "done", done.stderr[-2000:]
    trials = list(
        fold(e for e in journal.read(folder) if not isinstance(e, Opened | Closed)).values()
    )
    assert len(trials) == 6
    begins_late(shared(trials))
    check(trials, tmp_path / "alone")


def trains_on(folder: Path) -> bool:
    """Whether a trial that shares a beginning has reported something of its own."""
    if not (folder / JOURNAL).is_file():
        return False
    entries = journal.read(folder)
    known = {e.trial for e in entries if isinstance(e, Suggested) and e.origin is not None}
    return any(isinstance(e, Reported) and e.trial in known and e.report.metrics for e in entries)
