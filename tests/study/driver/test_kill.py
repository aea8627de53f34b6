"""Real drivers, really killed: whatever the moment, the study goes on from its journal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import random
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import killed_driver
import pytest
import torch

from autotune.storage import journal
from autotune.storage.journal import JOURNAL, Closed, Opened
from autotune.trial import Ended, Interrupted, Saved, State, Suggested, fold

SECONDS = 900.0  # a guard against hangs


def drive(folder: Path, address: str, nap: float = 0.01, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, killed_driver.__file__, str(folder), address, str(nap)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen(command, text=True, start_new_session=True, **streams)


def size(folder: Path) -> int:
    path = folder / JOURNAL
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def wait_for(folder: Path, lines: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + SECONDS
    while size(folder) < lines and process.poll() is None:
        assert time.monotonic() < end, "the driver does not get on"
        time.sleep(0.01)


def finish(folder: Path, address: str, nap: float = 0.01) -> None:
    out, error = drive(folder, address, nap).communicate(timeout=SECONDS)
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
        attempts = len(
            [e for e in events if isinstance(e, Interrupted) and e.trial == trial.number]
        )
        assert len(starts) <= 1 + attempts
    return events


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("backend", "kills"), [("local", 8), ("ray", 2)])
def test_a_driver_killed_at_ten_random_moments(
    backend: str, kills: int, fast_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its workers end by themselves, or Ray ends them: the next driver has workers of its own."""
    address = request.getfixturevalue("bare_ray") if backend == "ray" else ""
    folder, rng = fast_path / "study", random.Random(11)
    for kill in range(kills):
        process = drive(folder, address)
        if kill % 2:
            time.sleep(rng.uniform(0.3, 2.0))
        else:
            wait_for(folder, size(folder) + rng.randint(2, 40), process)
            time.sleep(rng.uniform(0.0, 0.01))
        process.kill()
        process.communicate(timeout=SECONDS)
    finish(folder, address)
    events = check(folder)
    lost = [e for e in events if isinstance(e, Interrupted)]
    assert len(lost) >= kills // 4 + 1
    assert not any(e.broke for e in lost)
    assert any(t.checkpoint and t.attempts > 1 + kills // 8 for t in fold(events).values())


@contextlib.contextmanager
def in_terminal(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver with a terminal, which is closed afterwards."""
    master, slave = pty.openpty()

    def take() -> None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    process = drive(folder, "", nap=0.05, stdin=slave, stderr=slave, preexec_fn=take)
    os.close(slave)
    try:
        yield process
    finally:
        os.close(master)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["Ctrl-C", "a closed terminal"])
def test_an_interrupt_saves_what_runs_and_the_study_is_resumable(how: str, tmp_path: Path) -> None:
    """The signal goes to all processes of the terminal."""
    folder = tmp_path / "study"
    if how == "Ctrl-C":
        process = drive(folder, "", nap=0.05)
        wait_for(folder, 20, process)
        os.killpg(process.pid, signal.SIGINT)
    else:
        with in_terminal(folder) as process:
            wait_for(folder, 20, process)
        os.killpg(process.pid, signal.SIGHUP)  # as a shell does
    out, error = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (-signal.SIGINT, ""), (error or "")[-2000:]
    entries = journal.read(folder)
    assert isinstance(entries[-1], Closed)
    assert entries[-1].reason == "interrupted"
    trial = fold([e for e in entries if not isinstance(e, Opened | Closed)])[0]
    assert (trial.state, trial.reason) == (State.CENSORED, "interrupted")
    assert trial.checkpoint is not None
    assert trial.checkpoint.step == trial.reports[-1].step
    content = torch.load(Path(trial.checkpoint.path) / "rank-0.pt", weights_only=True)
    assert content["step"] == trial.checkpoint.step
    finish(folder, "", nap=0.005)  # where it began: on this machine
    check(folder)


def taken(process: subprocess.Popen[str]) -> bool:
    """Whether the process has no signal waiting to be taken."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("ShdPnd:")[2].split()[0], 16) == 0


@pytest.mark.slow
def test_a_second_interrupt_leaves_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    process = drive(folder, "", nap=2 * SECONDS)
    wait_for(folder, 4, process)  # opened, suggested, started, set up
    process.send_signal(signal.SIGINT)
    while not taken(process):
        time.sleep(0.05)
    time.sleep(0.5)
    assert process.poll() is None, "the first one waits for the milestone"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=SECONDS)
    assert "KeyboardInterrupt" in error
    entries = journal.read(folder)
    assert isinstance(entries[-1], Closed)
    assert entries[-1].reason == "interrupted"
    trial = fold([e for e in entries if not isinstance(e, Opened | Closed)])[0]
    assert (trial.state, trial.reason) == (State.CENSORED, "interrupted")
