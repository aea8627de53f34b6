"""What is left of the checkpoints when a study is done: those that are to be kept, and no more."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sims import race, racing, simulate

import autotune as at
from autotune.backends.protocol import Stopped
from autotune.backends.simulator import SimCurve, SimPool
from autotune.study.driver.settings import trial_seed
from autotune.trial import Hardware


class Mixed(SimPool):
    """Its checkpoints are folders, and every second trial runs on a shared core."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.realtime = True

    def start(self, launch: Any) -> Hardware:
        return replace(super().start(launch), shared=launch.trial % 2 == 1)

    def stop(self, trial: int, save: str | None) -> None:
        super().stop(trial, save)
        if save is not None:  # written after the trial's end was written down
            Path(save).mkdir(parents=True)


@pytest.mark.parametrize("rates", [[2.0, 1.0], [2.0, 5.0, 3.0, 9.0]])
def test_the_last_trial_of_other_hardware_leaves_no_checkpoint(
    fast_path: Path, rates: list[float]
) -> None:
    """The fastest on its hardware, not of the study: saved at its end, and removed."""
    folder = fast_path / "study"
    pool = Mixed(race, 1)
    experiment = racing(rates, failure=at.FailurePolicy(checkpoint_interval=1))
    result = simulate(experiment, folder, len(rates), pool=pool, pruner="none")
    assert result.trials[-1].hardware.shared
    assert result.best is not None
    assert os.listdir(folder / "checkpoints") == [f"trial-{result.best.number:04d}"]


class Slow(SimPool):
    """Its checkpoints are folders, of whose last a trial tells 1.5 s after its end."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.realtime = True

    def stop(self, trial: int, save: str | None) -> None:
        saved = self._checkpoint(self._running[trial]) if save else None
        if save is not None:
            Path(save).mkdir(parents=True)
        self._at(1.5, Stopped(trial, saved))


def test_a_trial_that_ends_meanwhile_does_not_cost_the_best_ones_checkpoint(
    fast_path: Path,
) -> None:
    """Trial 2, the best, ends at 4.5 s; trial 1 at 5 s, before the state of trial 2 is reported."""
    folder = fast_path / "study"
    experiment = racing([5.0, 2.0, 10.0], failure=at.FailurePolicy(checkpoint_interval=1000))
    result = simulate(experiment, folder, 3, pool=Slow(race, 2), pruner="none")
    assert [round(t.ended_at or 0.0, 1) for t in result.trials] == [2.0, 5.0, 4.5]
    assert os.listdir(folder / "checkpoints") == ["trial-0002"]


class Folders(SimPool):
    """Its checkpoints are folders."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.realtime = True

    def stop(self, trial: int, save: str | None) -> None:
        super().stop(trial, save)
        if save is not None:
            Path(save).mkdir(parents=True)


def test_a_leader_that_was_merely_lucky_does_not_cost_the_best_ones_checkpoint(
    fast_path: Path,
) -> None:
    """Trial 1 takes 2 s and its race is given up after 6 s: then trial 0 leads again, with 6.25 s.

    Its checkpoint was removed when trial 2 ended, before the race had shown what trial 1 is worth.
    """

    def lucky(config: Any, seed: int) -> SimCurve:
        rate = 5.0 if seed == trial_seed(0, 1) else config["rate"]
        return race({"rate": rate}, seed)

    class Slowest:
        def ask(self, number: int, trials: Any) -> Any:
            return {"rate": 0.8}

    folder = fast_path / "study"
    asked = {"pool": Folders(lucky, 1), "pruner": "none", "racing": 0.15, "sampler": Slowest()}
    result = simulate(racing([1.6, 1.0, 0.9]), folder, 5, **asked)
    races = [(t.number, t.repeats, t.seconds) for t in result.trials if t.kind == "race"]
    assert races == [(3, 1, 6.0)]
    assert result.best is not None
    assert result.best.number == 0
    left = sorted(os.listdir(folder / "checkpoints"))
    assert left == ["trial-0000"]
