"""A checkpoint whose store is out of reach for a while: the trial waits, and loses nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from heads import free_ports
from saver import saver
from toys import METRIC

import autotune as at
from autotune.backends.worker.checkpoint_io import retry_reading
from autotune.storage import journal
from autotune.storage.checkpoint_files import DamagedError, UnreachableError, writing
from autotune.storage.journal import JOURNAL
from autotune.trial import Interrupted, Saved, State

LOST = "checkpoint out of reach"


class Server:
    """A real FTP server over a folder, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self._folder = folder
        self.start()

    @property
    def url(self) -> str:
        return f"ftp://127.0.0.1:{self.port}/store"

    def start(self) -> None:
        words = ["-i", "127.0.0.1", "-p", str(self.port), "-w", "-d", str(self._folder)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([sys.executable, "-m", "pyftpdlib", *words], **quiet)
        end = time.monotonic() + 600
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert time.monotonic() < end
            time.sleep(0.1)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if importlib.util.find_spec("pyftpdlib") is None:
        pytest.skip("needs pyftpdlib (pip install 'time-to-target[test]')")
    (tmp_path / "served").mkdir()
    made = Server(tmp_path / "served")
    yield made
    made.stop()


def study(folder: Path, place: str, **config: Any) -> at.StudyResult:
    settings = {"log": str(folder / "log"), "checkpoints": str(folder), "dies": 500, **config}
    space = at.SearchSpace({"x": at.Float(0, 1), **{k: at.Fixed(v) for k, v in settings.items()}})
    policy = at.FailurePolicy(hang_timeout=600, checkpoint_interval=0, checkpoint_folder=place)
    made = at.Experiment(
        "reach",
        saver,
        space,
        at.Target(METRIC, 0.8, limit=600),
        scaling=at.Scaling(num_workers=2),
        failure=policy,
        baseline={"x": 0.5},
    )
    options: dict[str, Any] = {"tracking_uri": "off", "sampler": "random", "pruner": "none"}
    return at.run(made, trials=1, out=folder / "study", backend="local", **options)


def once_lost(folder: Path, then: Callable[[], None]) -> threading.Thread:
    """When the journal says that the checkpoint was out of reach, do something."""

    def work() -> None:
        file, end = folder / "study" / JOURNAL, time.monotonic() + 900
        while time.monotonic() < end:
            if file.is_file() and LOST in file.read_text():
                then()
                return
            time.sleep(0.1)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def is_whole(result: at.StudyResult, folder: Path, said: str) -> None:
    """It went on from the last checkpoint that was written down, with no retry for the outage."""
    trial, events = result.trials[0], journal.read(result.folder)
    assert (trial.state, trial.retries) == (State.REACHED, 1), trial.error
    lost = [
        (e.reason.partition(":")[0], e.broke, e.damaged) for e in events if type(e) is Interrupted
    ]
    assert lost[0] == ("worker died", True, False)
    assert set(lost[1:]) == {(LOST, False, False)}
    first = next(i for i, e in enumerate(events) if type(e) is Interrupted)
    known = [e.checkpoint.step for e in events[:first] if type(e) is Saved]
    rows = [row.split(" ") for row in (folder / "log").read_text().splitlines()]
    begun = [int(row[4]) for row in rows if row[1] == "0" and row[3] == "start"]
    assert begun[0] == 0
    assert set(begun[1:]) == {known[-1]}
    assert "warning: trial 0: its checkpoint cannot be reached (" in said


@pytest.mark.slow
def test_a_server_that_is_stopped_and_started(
    tmp_path: Path, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    waiting = once_lost(tmp_path, server.start)
    result = study(tmp_path, server.url, kills=server.process.pid)
    waiting.join(10)
    is_whole(result, tmp_path, capfd.readouterr().err)
    assert server.process.poll() is None
    trial = result.trials[0]
    assert trial.checkpoint is not None
    assert trial.checkpoint.step == 800, "what is written once it is back counts"


@pytest.mark.soak
def test_a_mount_that_is_gone_for_a_while(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where the whole root is missing, its checkpoints are out of reach and not lost."""
    mount, away = tmp_path / "mount", tmp_path / "away"
    waiting = once_lost(tmp_path, lambda: os.rename(away, mount))
    result = study(tmp_path, str(mount), moves=[str(mount), str(away)])
    waiting.join(10)
    is_whole(result, tmp_path, capfd.readouterr().err)


@pytest.mark.slow
def test_nothing_is_written_into_the_mount_point_of_a_mount_that_is_gone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What were written there would be hidden once the mount is back, and hide until then."""
    mount, away = tmp_path / "mount", tmp_path / "away"
    result = study(tmp_path, str(mount), unmounts=[str(mount), str(away)], dies=600)
    trial, events = result.trials[0], journal.read(result.folder)
    assert (trial.state, trial.retries) == (State.REACHED, 1), trial.error
    assert list((tmp_path / "mount-point").rglob("*")) == []
    assert [(e.broke, e.damaged) for e in events if type(e) is Interrupted] == [(True, False)]
    lost = next(i for i, e in enumerate(events) if type(e) is Interrupted)
    known = [e.checkpoint.step for e in events[:lost] if type(e) is Saved]
    rows = [row.split(" ") for row in (tmp_path / "log").read_text().splitlines()]
    begun = [int(row[4]) for row in rows if row[1] == "0" and row[3] == "start"]
    assert begun == [0, known[-1]]
    assert known[-1] == 100, "of that at 200 the driver heard when the mount was gone"
    (root,) = mount.iterdir()
    assert f"no checkpoint: {root} is not there" in capfd.readouterr().err
    assert trial.checkpoint is not None
    assert trial.checkpoint.step == 800, "what is written once it is back counts"


def test_what_is_back_in_time_is_read(tmp_path: Path) -> None:
    folder, away = tmp_path / "root" / "trial-0000" / "step-1", tmp_path / "away"
    with writing(str(folder), "rank-0.pt") as file:
        file.write(b"state")
    os.rename(tmp_path / "root", away)
    threading.Timer(0.5, os.rename, (away, tmp_path / "root")).start()

    def read() -> bytes:
        return (folder / "rank-0.pt").read_bytes()

    assert retry_reading(read, str(folder), 120) == b"state"
    os.rename(tmp_path / "root", away)
    with pytest.raises(UnreachableError, match="is not there"):
        retry_reading(read, str(folder), 0.01)
    os.rename(away, tmp_path / "root")
    (folder / "rank-0.pt").unlink()
    with pytest.raises(FileNotFoundError):
        retry_reading(read, str(folder), 120)

    def damaged() -> None:
        raise DamagedError("a bit is another")

    with pytest.raises(DamagedError):
        retry_reading(damaged, str(folder), 120)
