"""Real drivers, really killed: whatever the moment, the study goes on from its journal."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import driver
import pytest
import torch

from autotune.storage import journal
from autotune.storage.journal import JOURNAL, Closed, Opened
from autotune.trial import Ended, Lost, Saved, State, Suggested, fold

KILLS = 20
START_SECONDS = 150.0


def drive(folder: Path, address: str, nap: float = 0.01, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, driver.__file__, str(folder), address, str(nap), *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def size(folder: Path) -> int:
    path = folder / JOURNAL
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def wait_for(folder: Path, lines: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + START_SECONDS
    while size(folder) < lines and process.poll() is None:
        assert time.monotonic() < end, "the driver does not get on"
        time.sleep(0.01)


def finish(folder: Path, address: str, nap: float = 0.01, *more: str) -> None:
    out, error = drive(folder, address, nap, *more).communicate(timeout=120)
    assert out.strip() == "done", error[-2000:]


def check(folder: Path) -> list[Any]:
    """That the journal is consistent and the trainers lost no step after a checkpoint."""
    entries = journal.read(folder)
    events = [e for e in entries if not isinstance(e, Opened | Closed)]
    trials = fold(events)
    assert [e.trial for e in events if isinstance(e, Suggested)] == list(range(5))
    assert [e.at for e in entries] == sorted(e.at for e in entries)
    for trial in trials.values():
        assert (trial.state, trial.retries) == (State.REACHED, 0)
        final = [e for e in events if isinstance(e, Ended) and e.trial == trial.number]
        assert [e.reason for e in final if e.reason != "interrupted"] == ["target"]
        done = [r for r in trial.reports if r.metrics]
        assert [r.step for r in done] == list(range(100, done[-1].step + 1, 100))
        assert all(r.metrics["summed"] == r.step for r in done)
        saved = {
            e.checkpoint.step for e in events if isinstance(e, Saved) and e.trial == trial.number
        }
        rows = [row.split() for row in (folder.parent / "log").read_text().splitlines()]
        starts = [int(row[4]) for row in rows if row[0] == str(trial.seed) and row[3] == "start"]
        assert starts == sorted(starts), "each start is at the newest checkpoint"
        assert set(starts) <= {0, *saved}
        attempts = len([e for e in events if isinstance(e, Lost) and e.trial == trial.number])
        assert len(starts) <= 1 + attempts
    return events


@pytest.mark.slow
def test_a_driver_killed_at_twenty_random_moments(ray_address: str, fast_path: Path) -> None:
    folder, rng = fast_path / "study", random.Random(11)
    for kill in range(KILLS):
        process = drive(folder, ray_address)
        if kill % 2:
            time.sleep(rng.uniform(0.3, 2.0))
        else:
            wait_for(folder, size(folder) + rng.randint(2, 40), process)
            time.sleep(rng.uniform(0.0, 0.01))
        process.kill()
        process.communicate(timeout=30)
    finish(folder, ray_address)
    events = check(folder)
    lost = [e for e in events if isinstance(e, Lost)]
    assert len(lost) >= KILLS // 4
    assert not any(e.broke for e in lost)
    assert any(t.checkpoint and t.attempts > 2 for t in fold(events).values())


@pytest.mark.slow
def test_killed_with_mlflow_on_and_two_trials_at_once(ray_address: str, tmp_path: Path) -> None:
    """The same MLflow runs go on, and at the end they say what the journal says."""
    folder, seen = tmp_path / "study", {}
    for more in (25, 30):
        process = drive(folder, ray_address, 0.02, "mlflow")
        wait_for(folder, size(folder) + more, process)
        process.kill()
        process.communicate(timeout=30)
        seen |= runs_of(folder, "KILLED")
    finish(folder, ray_address, 0.02, "mlflow")
    runs = runs_of(folder, "FINISHED")
    assert {number: run.info.run_id for number, run in runs.items()} | seen == {
        number: run.info.run_id for number, run in runs.items()
    }
    trials = fold([e for e in journal.read(folder) if not isinstance(e, Opened | Closed)])
    assert sorted(runs) == sorted(trials) == list(range(5))
    for number, trial in trials.items():
        assert runs[number].data.metrics["time_to_target_seconds"] == trial.seconds
        assert runs[number].data.tags["autotune.state"] == "REACHED"


def runs_of(folder: Path, status: str) -> Any:
    """Waits until no run of the study is RUNNING; its trials' runs, or only the ids of killed ones.

    The view may be behind for some seconds; that it catches up is what is tested.
    """
    from mlflow.tracking import MlflowClient

    end = time.monotonic() + START_SECONDS
    while not (folder / "mlflow.json").is_file():  # two first openings at once would collide
        assert time.monotonic() < end, "the view has not begun"
        time.sleep(0.1)
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    while time.monotonic() < end:
        time.sleep(0.5)
        with contextlib.suppress(Exception):  # the store is still being made
            found = client.search_runs([client.get_experiment_by_name("killed").experiment_id])
            parent = [r for r in found if r.data.tags["autotune.kind"] == "study"]
            if len(parent) == 1 and parent[0].info.status == status:
                break
    else:
        raise AssertionError(f"the study's run is not {status} in time")
    assert not [r for r in found if r.info.status == "RUNNING"]
    numbers = [int(r.data.tags["autotune.trial"]) for r in found if r not in parent]
    assert len(numbers) == len(set(numbers)), "one run a trial"
    by_number = {int(r.data.tags["autotune.trial"]): r for r in found if r not in parent}
    if status == "KILLED":
        return {number: run.info.run_id for number, run in by_number.items()}
    return by_number


def test_an_interrupt_saves_what_runs_and_the_study_is_resumable(
    ray_address: str, tmp_path: Path
) -> None:
    """As Ctrl-C does in a terminal, the signal goes to all processes, those of Ray included."""
    folder = tmp_path / "study"
    process = drive(folder, "", nap=0.05)
    wait_for(folder, 20, process)
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=30)
    assert out.strip() == "interrupted", error[-2000:]
    entries = journal.read(folder)
    assert isinstance(entries[-1], Closed)
    assert entries[-1].reason == "interrupted"
    trial = fold([e for e in entries if not isinstance(e, Opened | Closed)])[0]
    assert (trial.state, trial.reason) == (State.CENSORED, "interrupted")
    assert trial.checkpoint is not None
    assert trial.checkpoint.step == trial.reports[-1].step
    held = torch.load(Path(trial.checkpoint.path) / "rank-0.pt", weights_only=True)
    assert held["step"] == trial.checkpoint.step
    finish(folder, ray_address, nap=0.005)
    check(folder)


def test_a_second_interrupt_leaves_at_once(ray_address: str, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    process = drive(folder, ray_address, nap=20.0)
    wait_for(folder, 4, process)  # opened, suggested, started, set up
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None, "the first one waits for the milestone"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=15)
    assert time.monotonic() - begin < 8
    assert "KeyboardInterrupt" in error
    entries = journal.read(folder)
    assert isinstance(entries[-1], Closed)
    assert entries[-1].reason == "interrupted"
    trial = fold([e for e in entries if not isinstance(e, Opened | Closed)])[0]
    assert (trial.state, trial.reason) == (State.CENSORED, "interrupted")
