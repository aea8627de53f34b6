"""What the driver does while the store of a checkpoint gives no answer."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sims import RealTime, race, racing, simulate

import autotune as at
from autotune.backends.protocol import Launch, WorkerFailed
from autotune.backends.simulator import SimCurve, SimPool
from autotune.errors import StudyError
from autotune.storage import journal
from autotune.trial import Checkpoint, Config, Hardware, Interrupted, Saved, State

SAID = "trial 0: its checkpoint cannot be reached (OSError: no answer)"


@dataclass
class Away(SimPool):
    """Its workers find no answer for so many times; says what they were given to go on from."""

    times: int = 0
    given: list[Checkpoint | None] = field(default_factory=list)

    def start(self, launch: Launch) -> Hardware:
        hardware = super().start(launch)
        self.given.append(launch.checkpoint)
        if launch.checkpoint is not None and self.times > 0:
            self.times -= 1
            self._agenda = [due for due in self._agenda if due[2].trial != launch.trial]
            heapq.heapify(self._agenda)
            self._at(1.0, WorkerFailed(launch.trial, "OSError: no answer", store_unreachable=True))
        return hardware


def died_once() -> SimPool:
    """A worker dies after 30 seconds, and never again."""
    died = False

    def curve(config: Config, seed: int) -> SimCurve:
        nonlocal died
        whole, before = race(config, seed), died
        died = True
        return whole if before else SimCurve(whole.points[:31], end="died")

    return Away(curve, 1)


def study(folder: Path, pool: SimPool) -> at.StudyResult:
    policy = at.FailurePolicy(checkpoint_interval=5, max_retries=1)
    return simulate(racing([0.25], failure=policy), folder, 1, pool=pool)


def test_a_trial_waits_for_its_checkpoint_and_no_retry_is_counted(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = died_once()
    assert isinstance(pool, Away)
    pool.times = 9
    result = study(fast_path, pool)
    trial = result.trials[0]
    assert (trial.state, trial.retries, trial.seconds) == (State.REACHED, 1, 40.0)
    events = journal.read(result.folder)
    first = next(i for i, e in enumerate(events) if isinstance(e, Interrupted))
    before = [e.checkpoint for e in events[:first] if isinstance(e, Saved)][-1]
    assert pool.given == [None] + [before] * 10
    lost = [e for e in events if isinstance(e, Interrupted)]
    assert [(e.broke, e.damaged) for e in lost] == [(True, False)] + [(False, False)] * 9
    assert capsys.readouterr().err.count(f"{SAID}: it is tried again") == 9


def test_the_root_of_checkpoints_is_made_once(fast_path: Path) -> None:
    """Where something was saved and it is missing, its mount is gone: it is not made anew."""
    mount = fast_path / "mount"
    policy = at.FailurePolicy(checkpoint_interval=5, checkpoint_folder=str(mount))
    experiment = racing([10.0, 10.0], failure=policy)
    simulate(experiment, fast_path / "study", 1, pool=RealTime(race, 1))
    (root,) = mount.iterdir()
    assert root.is_dir()
    root.rmdir()
    simulate(experiment, fast_path / "study", 2, pool=RealTime(race, 1))
    assert list(mount.iterdir()) == []


def test_after_ten_times_the_study_waits_for_you(fast_path: Path) -> None:
    pool = died_once()
    assert isinstance(pool, Away)
    pool.times = 10
    with pytest.raises(StudyError, match="tried 10 times: resume the study when it can, or make"):
        study(fast_path, pool)
    assert pool.given[-1] is not None
    again = Away(race, 1)
    trial = study(fast_path, again).trials[0]
    assert again.given == [pool.given[-1]], "it goes on from the same checkpoint"
    assert (trial.state, trial.retries, trial.seconds) == (State.REACHED, 1, 40.0)
