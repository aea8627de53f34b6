"""A study on two ranks that keep something between their messages; one rank is killed once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import killed_exchanges
import pytest

import autotune as at
from autotune.trial import State, Trial

STEPS, TOKENS = 4, 8 * 32
"""Steps between milestones, and tokens of a step."""
MILESTONES = 5
TEXT = {
    "text": "synthetic",
    "optimizer": "sgd",
    "momentum": 0.9,
    "layers": 1,
    "width": 16,
    "heads": 2,
    "batch_size": 8,
    "sequence_length": 32,
    "train_size": 9000,
    "val_size": 500,
    "milestone": STEPS * TOKENS,
}
POWERSGD, DILOCO = {"gradient_compression": "powersgd"}, {"synchronization": "diloco"}
OWN: dict[str, Any] = {
    "gradient_compression": at.Choice(("none", "powersgd")),
    "powersgd_start": at.Fixed(2, when=POWERSGD),
    "synchronization": at.Choice(("every_step", "diloco")),
    "diloco_period": at.Fixed(3, when=DILOCO),  # the first two milestones are between exchanges
}
KINDS = (
    {**POWERSGD, "synchronization": "every_step"},
    {**DILOCO, "gradient_compression": "none"},
)
TIMED = {"samples_per_second", "flops_per_second", "exposed_communication"}


def trained(folder: Path) -> tuple[Trial, ...]:
    """Of each kind a trial that is left alone, and one of the same seed of which a rank dies."""
    fixed = {**TEXT, "log": str(folder.with_suffix(".log"))}
    space = {**OWN, **{key: at.Fixed(value) for key, value in fixed.items()}}
    space |= {"lr": at.Float(0.01, 1.0, log=True), "killed": at.Choice((False, True))}
    made = at.Experiment(
        "killed-exchanges",
        killed_exchanges.train,
        at.SearchSpace(space),
        at.Target("val_loss", mode="min", limit_steps=MILESTONES * STEPS * TOKENS),
        configs=[{"lr": 0.1, **kind, "killed": dies} for kind in KINDS for dies in (False, True)],
        scaling=at.Scaling(num_workers=2, max_concurrent_trials=1),
        failure=at.FailurePolicy(checkpoint_interval=0.0),
    )
    options: dict[str, Any] = {"pruner": "none", "sampler": "random", "tracking_uri": "off"}
    options |= {"trials": 4, "seeds": [1] * 4}
    return at.run(made, backend="local", out=folder, **options).trials


@pytest.mark.slow
def test_trials_go_on_with_what_their_ranks_kept_between_messages(tmp_path: Path) -> None:
    """Errors of compressed gradients, and the outer optimizer's state: all bits are the same."""
    trials = trained(tmp_path / "study")
    log = (tmp_path / "study.log").read_text().splitlines()
    assert log[::2] == ["killed"] * len(KINDS)
    last = killed_exchanges.KILLED_AFTER * STEPS * TOKENS
    for whole, killed, line in zip(trials[::2], trials[1::2], log[1::2], strict=True):
        assert (whole.state, whole.attempts, whole.seed) == (State.COMPLETED, 1, killed.seed)
        assert (killed.state, killed.attempts, killed.retries) == (State.COMPLETED, 2, 1)
        resumed, step = line.split()
        assert resumed == "resumed"
        assert int(step) in range(STEPS * TOKENS, last + 1, STEPS * TOKENS), "from a checkpoint"
        reported = [[r for r in trial.reports if r.metrics] for trial in (whole, killed)]
        for one, other in zip(*reported, strict=True):
            assert one.step == other.step
            assert untimed(one.metrics) == untimed(other.metrics)
        assert len({r.metrics["weights"] for r in reported[0]}) == len(reported[0]) == MILESTONES


def untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    assert {*metrics} >= TIMED
    return {key: value for key, value in metrics.items() if key not in TIMED}
