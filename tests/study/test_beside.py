"""A study on two ranks whose trials validate in a process beside training, which is killed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import validating

import autotune as at
from autotune.trial import State, Trial

EXACT = ("val_accuracy", "train_loss", "lr", "progress")
LAST = 1600


def trained(folder: Path, *validation: str) -> tuple[Trial, ...]:
    """A trial with each kind of validation, of one seed, one after the other."""
    fixed: dict[str, Any] = {"data": "digits", "model": "resnet8", "width": 4, "val_size": 300}
    fixed |= {"batch_size": 32, "milestone": 320, "horizon": 2.0}
    fixed |= {"log": str(folder.with_suffix(".log")), "kill_at": 960}
    space: dict[str, Any] = {k: at.Fixed(v) for k, v in fixed.items()}
    space |= {"lr": at.Float(0.01, 1.0, log=True), "validation": at.Choice(validation)}
    made = at.Experiment(
        "beside",
        validating.train,
        at.SearchSpace(space),
        at.Target("val_accuracy", limit_steps=LAST),
        configs=[{"lr": 0.1, "validation": kind} for kind in validation],
        scaling=at.Scaling(num_workers=2, max_concurrent_trials=1),
        failure=at.FailurePolicy(checkpoint_interval=0.0),
    )
    Path(fixed["log"]).touch()
    options: dict[str, Any] = {"pruner": "none", "sampler": "random", "tracking_uri": "off"}
    options |= {"trials": len(validation), "seeds": [1] * len(validation)}
    return at.run(made, backend="local", out=folder, **options).trials


@pytest.mark.slow
def test_a_trial_whose_validation_is_killed_reports_what_one_with_inline_does(
    tmp_path: Path,
) -> None:
    inline, beside = trained(tmp_path / "study", "inline", "beside")
    assert (inline.state, inline.attempts, inline.seed) == (State.COMPLETED, 1, beside.seed)
    assert (beside.state, beside.attempts, beside.retries) == (State.COMPLETED, 2, 1)
    reported = [[r for r in t.reports if r.metrics] for t in (inline, beside)]
    assert (
        [r.step for r in reported[0]] == [r.step for r in reported[1]] == [*range(320, 1601, 320)]
    )
    for one, other in zip(*reported, strict=True):
        assert {k: other.metrics[k] for k in EXACT} == {k: one.metrics[k] for k in EXACT}
        assert other.metrics["val_loss"] == pytest.approx(one.metrics["val_loss"], rel=1e-6)
    assert beside.detail.endswith("; decided at step 1,920, on the report of step 1,600")
    log = (tmp_path / "study.log").read_text().splitlines()
    pids = {int(line.split()[1]) for line in log if line != "killed"}
    assert len(pids) == 2, "one for each attempt"
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
