"""All ways of updating learn as much, within what seeds differ by; kills lose nothing."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import killed_clicks
import pytest

import autotune as at
from autotune.trial import State

LEARNS = {
    "data": "generated",
    "hash_size": 100,
    "train_size": 20_000,
    "val_size": 10_000,
    "lr": 0.005,
    "lr_sparse": 0.1,
    "batch_size": 200,
    "milestone": 20_000,
    "width": 8,
    "hidden": 32,
}


@pytest.mark.slow
def test_every_update_reaches_the_synchronous_auc_within_the_noise_of_seeds(
    on_two_ranks: Any,
) -> None:
    """100 steps on two ranks. Geo-SGD and Hogwild make them of half the batch each."""

    def reached(seed: int, **update: Any) -> float:
        ranks = on_two_ranks({**LEARNS, "seed": seed, **update}, 1)
        found: float = ranks[0]["metrics"][-1]["val_auc"]
        return found

    synchronous = [reached(seed) for seed in range(3)]
    spread = statistics.stdev(synchronous)
    mean = statistics.mean(synchronous)
    assert mean > 0.79
    assert spread < 0.005  # four seeds: 0.0014
    for update in (
        {"sparse_update": "asynchronous"},
        {"sparse_update": "asynchronous", "staleness_bound": 8},
        {"sparse_update": "geo_sgd", "push_every": 4},
        {"sparse_update": "hogwild", "push_every": 4},
    ):
        assert abs(reached(0, **update) - mean) < 0.01, update


@pytest.mark.slow
def test_an_asynchronous_trial_that_is_killed_twice_loses_no_update(tmp_path: Path) -> None:
    steps, size = 12, 2400
    fixed = {
        **LEARNS,
        "train_size": 4 * size,
        "val_size": 2000,
        "milestone": size,
        "sparse_update": "asynchronous",
        "staleness_bound": 3,
        "max_epochs": 1.5,
        "log": str(tmp_path / "log"),
        "kills": 2,
        "steps": 2 * steps,
    }
    Path(str(fixed["log"])).touch()
    space = {key: at.Fixed(value) for key, value in fixed.items() if key != "lr"}
    made = at.Experiment(
        "killed-clicks",
        killed_clicks.train,
        at.SearchSpace({**space, "lr": at.Float(0.001, 0.1, log=True)}),
        at.Target("val_auc", limit_steps=6 * size),
        configs=[{"lr": 0.005}],
        scaling=at.Scaling(num_workers=2, max_concurrent_trials=1),
        failure=at.FailurePolicy(checkpoint_interval=0.0, max_retries=2),
    )
    options: dict[str, Any] = {"pruner": "none", "sampler": "random", "tracking_uri": "off"}
    (trial,) = at.run(made, trials=1, backend="local", out=tmp_path / "study", **options).trials
    assert len((tmp_path / "log").read_text().splitlines()) == 2
    assert (trial.state, trial.attempts) == (State.COMPLETED, 3)
    reports = [report for report in trial.reports if report.metrics]
    assert [r.step for r in reports][-6:] == [size * n for n in range(1, 7)]
    for report in reports:  # as many updates as steps of each rank: none lost, none made twice
        assert report.metrics["updates"] == 2 * report.step / 200
        assert report.metrics.get("staleness_max", 0) <= 3
    assert reports[-1].metrics["val_auc"] > 0.76
