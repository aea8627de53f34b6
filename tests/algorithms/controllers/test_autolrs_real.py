"""AutoLRS with a real trainer: in this process on a virtual clock, and with checkpoints on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune as at
from autotune.algorithms.ranking.lineage import as_one, descent
from autotune.backends.simulator import Live, SimPoint, SimPool
from autotune.trial import Trial
from trainers.image import train

EPOCH, MILESTONE = 1437, 128
SETTING: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "width": 16,
    "batch_size": 32,
    "momentum": 0.9,
    "milestone": MILESTONE,
    "horizon": 50.0,
}
SPACE = at.SearchSpace(
    {**{k: at.Fixed(v) for k, v in SETTING.items()}, "lr": at.Float(1e-3, 1.0, log=True)}
)


class First:
    """A sampler with one learning rate, for each of so many lines."""

    def __init__(self, lines: int = 1) -> None:
        self._lines = lines

    def ask(self, number: int, trials: Sequence[Trial]) -> Mapping[str, Any] | None:
        return {"lr": 0.01} if number < self._lines else None


def live(config: Any, seed: int) -> Live:
    """A training whose seconds are milestones; it can be saved, and goes on from a state."""
    running, change = train({**config, "seed": seed}), None
    try:
        if "state" in config:
            next(running)
        while True:
            milestone = running.send(change)
            metrics = dict(milestone.evaluate()) if milestone.step else {}
            seconds = milestone.step / MILESTONE
            change = yield SimPoint(milestone.step, seconds, metrics, save=milestone.state)
    finally:
        running.close()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def by_line(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    """The trials that replaced each other, by the number of the first."""
    by_number, found = {t.number: t for t in trials}, dict[int, list[Trial]]()
    for trial in trials:
        first = trial
        while first.origin is not None:
            first = by_number[first.origin.replaces]
        found.setdefault(first.number, []).append(trial)
    return found


def test_what_a_line_has_trained_is_one_schedule(fast_path: Path) -> None:
    """From scratch, with the line's learning rates as a schedule, the losses are the same bits."""
    result = at.run(
        at.Experiment("digits", train, SPACE, at.Target("val_accuracy", 1.0, limit=60.0)),
        trials=12,
        sampler=First(),
        controller="autolrs(stage=10, candidates=3, explore=3)",
        pruner="none",
        out=fast_path,
        pool=SimPool(live, 1),
        time_limit=100,
        tracking_uri="off",
    )
    last = result.trials[-1]
    line = descent(last, result.trials)
    assert len(line) > 2
    assert len({segment.trial.config["lr"] for segment in line}) > 1
    again = train({**as_one(line), "seed": last.seed})
    losses = {milestone.step: milestone.evaluate().get("train_loss") for milestone in _until(again)}
    reported = {r.step: r.metrics["train_loss"] for r in last.reports if r.metrics}
    assert len(reported) > 20
    assert {step: losses[step] for step in reported} == reported


def _until(running: Any, milestones: int = 80) -> Any:
    for _ in range(milestones):
        yield next(running)
    running.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_checkpoints_on_disk_stay_as_long_as_a_stage_needs_them(
    workers: int, tmp_path: Path
) -> None:
    """The failure policy saves at every milestone, so that the stage's own would soon be gone.

    Each line ends in its second stage, at the limit: trials are left, whichever line is faster.
    """
    target = at.Target("val_accuracy", 1.0, clock="steps", limit_steps=14 * MILESTONE)
    controller = f"autolrs(stage={8 * MILESTONE}, candidates=3, explore={4 * MILESTONE})"
    failure = at.FailurePolicy(checkpoint_interval=0.0)
    result = at.run(
        at.Experiment("digits", train, SPACE, target, failure=failure),
        trials=40,
        sampler=First(workers),
        controller=controller,
        pruner="none",
        out=tmp_path / "study",
        backend="local",
        max_concurrent_trials=workers,
        tracking_uri="off",
        progress=False,
    )
    lines = by_line(result.trials)
    assert len(lines) == workers
    assert len(result.trials) < 40
    for line in lines.values():
        begun = [t.origin.checkpoint.step for t in line if t.origin is not None]
        assert begun.count(begun[0]) >= 3, "all candidates begin where the first did"
        assert max(begun) > begun[0], "and a second stage begins later"
        for trial in line:
            assert trial.retries == 0
