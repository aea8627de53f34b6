"""The mirror's process: real processes and a real server that come, go, stall and are killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from heads import free_ports
from proxies import SlowProxy

from autotune.cli import mlflow_ui
from autotune.errors import UserError
from autotune.tracking.mirror import Mirror, catch_up, default_uri, environment, ui_command
from autotune.tracking.uris import check_uri, label, redact
from autotune.trial import Interrupted, Started, State

from .conftest import HARDWARE
from .test_own_store import harm

DRIVER = """
import sys, time
from pathlib import Path
from autotune.tracking.mirror import Mirror
mirror = Mirror(Path(sys.argv[1]), None)
time.sleep(600)
"""


def until(ready, seconds: float = 600.0, pause: float = 0.3):
    """What `ready` returns, once that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found := ready():
                return found
        except (OSError, AssertionError, KeyError, ValueError, sqlite3.Error):
            pass
        time.sleep(pause)
    raise AssertionError("waited in vain")


def statuses(study, uri: str | None = None) -> dict[str, str]:
    return {name: run.info.status for name, run in study.runs(uri).items()}


@pytest.mark.slow
def test_a_driver_that_is_killed_and_a_study_that_goes_on(study, processes) -> None:
    study.trial(0, 2.0)
    study.begin(1)
    study.report(1, [0, 100])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(study.path)], env=environment(), start_new_session=True
    )
    processes.append(driver)
    until(lambda: statuses(study).get("trial-0001") == "RUNNING")
    driver.send_signal(signal.SIGKILL)
    until(lambda: set(statuses(study).values()) == {"KILLED", "FINISHED"})
    before = study.runs()
    assert before["trial-0001"].data.tags["autotune.reason"] == "interrupted"
    assert before["digits"].info.status == "KILLED"

    with Mirror(study.path, None) as mirror:
        study.open()
        study.write(Interrupted(1, "driver restarted", broke=False), Started(1, 0.0, HARDWARE))
        until(lambda: statuses(study)["trial-0001"] == "RUNNING")
        until(lambda: statuses(study)["digits"] == "RUNNING")
        study.report(1, [0, 100, 200])

        assert mirror.pid is not None
        os.kill(mirror.pid, signal.SIGKILL)  # it is started again, and nothing is doubled
        study.end(1, State.REACHED, "target", 2.0)
        study.close()
        assert mirror.close(600)
    after = study.runs(view=3)
    assert study.ids(after) == study.ids(before)
    assert set(statuses(study).values()) == {"FINISHED"}
    assert [step for step, _ in study.history(after["trial-0001"], "acc")] == [0, 100, 200]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tables",
    [pytest.param(1, marks=pytest.mark.soak), 8, pytest.param(20, marks=pytest.mark.soak)],
)
def test_a_process_that_is_killed_while_it_makes_the_store(
    study, processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: int
) -> None:
    """Half of a store's tables cannot be added to: it would never show the study.

    Temporary files of a process that was killed, wherever it was, go with the next process.
    """
    study.trial(0, 2.0)
    study.close()
    (study.path / "mlflow.db").unlink()
    command = [sys.executable, "-m", "autotune.cli.mirror_process", str(study.path), "60"]
    env = environment(default_uri(study.path))
    first = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, start_new_session=True)
    processes.append(first)
    made = until(lambda: counted(study.path, tables), pause=0.001)
    first.kill()
    first.wait()
    assert made < 60, "it was done before it was killed"
    (left,) = study.path.glob(".view-*")
    (left / "tmp1").mkdir()
    usual = tmp_path / "usual"
    usual.mkdir()
    before = usual.stat().st_mtime_ns
    monkeypatch.setenv("TMPDIR", str(usual))
    assert catch_up(study.path, None, 600.0)
    assert statuses(study) == {"digits": "FINISHED", "trial-0000": "FINISHED"}
    assert not list(study.path.glob("*.part*"))
    assert usual.stat().st_mtime_ns == before, "nothing was made in there"
    assert not list(study.path.glob(".view-*"))


SENT_AWAY = """
import os, signal, sys, tempfile
from autotune.cli.mirror_process import Driver
signal.signal(signal.SIGTERM, Driver().outlive)
with tempfile.TemporaryDirectory() as place:
    print(place, flush=True)
    sys.stdin.read()  # until the driver has hung up
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_process_that_is_sent_away_leaves_no_files(processes) -> None:
    """As the next driver's process does with one whose driver was killed."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", SENT_AWAY]
    process = subprocess.Popen(command, env=environment(), text=True, **pipes)
    processes.append(process)
    said, _ = process.communicate(timeout=900)
    assert process.returncode != 0
    assert not Path(said.strip()).exists()


def counted(folder: Path, least: int) -> int:
    """How many tables the store has that is being made, once they are so many."""
    (file,) = (f for f in folder.glob("mlflow.db*") if not f.name.endswith("-journal"))
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=0.0) as store:
        (found,) = store.execute(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table'"
        ).fetchone()
    return found if found >= least else 0


@pytest.mark.slow
def test_a_store_of_another_version_that_is_then_wiped(study, tmp_path: Path) -> None:
    """Each time the view is made again, from the journal's beginning."""
    study.trial(0, 2.0)
    harm(study.path / "mlflow.db", "older")
    with Mirror(study.path, None) as mirror:
        until(lambda: '"0":' in (study.path / "mlflow.json").read_text())
        (study.path / "mlflow.db").unlink()
        study.trial(1, 1.0)
        study.close()
        assert mirror.close(600)
    copy = shutil.copy(study.path / "mlflow.db", tmp_path)  # this process may have the wiped file
    shown = study.runs(f"sqlite:///{copy}")
    assert sorted(shown) == ["digits", "trial-0000", "trial-0001"]
    assert {run.info.status for run in shown.values()} == {"FINISHED"}
    assert shown["trial-0000"].data.metrics["time_to_target_seconds"] == 2.0
    assert (study.path / "mlflow.db.aside-1").exists()
    said = (study.path / "mlflow.log").read_text()
    assert said.count("MLflow cannot use mlflow.db: it is now mlflow.db.aside-1") == 1


class Server:
    """An MLflow server on loopback, which can be killed and started again."""

    def __init__(self, folder: Path, processes: list) -> None:
        (self.port,) = free_ports(1)
        self.folder = folder
        self.uri = f"http://127.0.0.1:{self.port}"
        self._processes = processes

    def start(self) -> None:
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"),
            *("--artifacts-destination", str(self.folder / "artifacts")),
            # Behind a proxy that holds answers back, connections would look idle, and be closed.
            *("--uvicorn-opts", "--timeout-keep-alive 600"),
        ]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command, env=environment(), stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(self._process)
        until(lambda: urllib.request.urlopen(f"{self.uri}/health", timeout=60).read() == b"OK")

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def server(tmp_path: Path, processes, empty_store: Path) -> Server:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "mlflow.db").write_bytes(empty_store.read_bytes())
    return Server(tmp_path / "server", processes)


@pytest.mark.slow
def test_a_server_that_stalls_is_late_and_is_killed(study, server, monkeypatch, capfd) -> None:
    """Stalled, then down, then late at the start; killed in the middle; and down at the end.

    And a password in its URI. Answers of half a minute are in test_slow_server.
    """
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    (port,) = free_ports(1)  # where the mirror looks for the server
    log = study.path / "mlflow.log"
    study.trial(0, 2.0)
    with socket.create_server(("127.0.0.1", port)):  # takes connections, never answers
        mirror = Mirror(study.path, f"http://user:Pa55%2Fword@127.0.0.1:{port}")
        until(lambda: "timed out" in log.read_text())
    until(lambda: "refused" in log.read_text())
    server.start()
    proxy = SlowProxy(port, server.port, 1.0)
    until(lambda: proxy.answers >= 3)
    study.trial(1, 1.0)
    until(lambda: statuses(study, server.uri).get("trial-0000") == "FINISHED")
    proxy.delay = 0.0
    study.begin(2)
    study.report(2, [0, 100])
    until(lambda: statuses(study, server.uri).get("trial-0002") == "RUNNING")
    proxy.close()
    server.kill()
    study.report(2, [200], train_loss=float("nan"))
    study.end(2, State.FAILED, "ValueError", 2.0, "boom")
    study.close()
    until(lambda: "refused" in json.loads((study.path / "mlflow.json").read_text())["behind"])
    assert not mirror.close(2)
    printed = capfd.readouterr().err
    assert re.search(r"MLflow is behind: .*refused.*; `autotune resume .*` catches up\n", printed)
    commands = Path(f"/proc/{mirror.pid}/cmdline").read_text()
    server.start()
    proxy = SlowProxy(port, server.port, 0.0)
    assert mirror.close(600)
    proxy.close()
    runs = study.runs(server.uri)
    shown = {name: run.info.status for name, run in runs.items()}
    reached = dict.fromkeys(("digits", "trial-0000", "trial-0001"), "FINISHED")
    assert shown == {**reached, "trial-0002": "FAILED"}
    for name in ("trial-0001", "trial-0002"):
        assert [s for s, _ in study.history(runs[name], "acc", server.uri)] == [0, 100, 200]
    assert list(server.folder.rglob("error.txt"))
    written = b"".join(p.read_bytes() for p in study.path.rglob("*") if p.is_file())
    for password in ("Pa55%2Fword", "Pa55/word", "user:"):
        assert password not in printed + commands
        assert password.encode() not in written
    assert not (study.path / "artifacts").exists()


@pytest.mark.slow
def test_giving_up(study, capfd) -> None:
    study.trial(0, 2.0)
    study.close()
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    mirror = Mirror(study.path, nobody, patience_seconds=0.0)
    assert not mirror.close(600)
    pid = mirror.pid
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert capfd.readouterr().err.count("\n") == 1


def test_a_study_is_shown_by_a_server(study, mlflow_server) -> None:
    study.trial(0, 2.0)
    with Mirror(study.path, mlflow_server.uri) as mirror:
        study.begin(1)
        study.report(1, [0, 100])
        study.end(1, State.FAILED, "ValueError", 2.0, "boom")
        study.close()
        assert mirror.close(600)
    uri = mlflow_server.uri
    ended = {"digits": "FINISHED", "trial-0000": "FINISHED", "trial-0001": "FAILED"}
    assert statuses(study, uri) == ended
    runs = study.runs(uri)
    assert runs["trial-0000"].data.metrics["time_to_target_seconds"] == 2.0
    assert [s for s, _ in study.history(runs["trial-0001"], "acc", uri)] == [0, 100]
    assert list((mlflow_server.folder / "artifacts").rglob("error.txt")), "sent, not written there"


def test_nothing_raises_into_the_study(tmp_path: Path, capfd) -> None:
    with Mirror(tmp_path / "missing", None) as mirror:
        assert not mirror.close(10)
    line = r"MLflow is behind: .*; `autotune resume .*/missing` catches up\n"
    assert re.search(line, capfd.readouterr().err)


@pytest.mark.slow
def test_the_ui_serves_the_own_store_of_a_moved_folder(study, processes, tmp_path: Path) -> None:
    """One that was not is in test_ui."""
    study.trial(0, 2.0)
    study.close()
    study.copier().catch_up(over=True)
    folder = Path(shutil.move(study.path, tmp_path / "moved"))
    mlflow_ui.prepare(folder, "digits", print)
    (port,) = free_ports(1)  # 5000 is also the first choice of a test beside this one
    command = ui_command(folder, port)
    with open(tmp_path / "log", "wb") as log:
        ui = subprocess.Popen(
            command, env=environment(), stdout=log, stderr=log, start_new_session=True, cwd=tmp_path
        )
    processes.append(ui)
    run = study.runs(default_uri(folder))["trial-0000"].info.run_id
    address = f"http://127.0.0.1:{port}/get-artifact?path=schedules.png&run_uuid={run}"
    assert until(lambda: urllib.request.urlopen(address, timeout=60).read()).startswith(b"\x89PNG")


@pytest.mark.parametrize("ignored", [True, False], ids=["nohup", "terminal"])
def test_the_ui_goes_on_without_a_terminal_where_it_was_started_so(
    study, monkeypatch: pytest.MonkeyPatch, ignored: bool
) -> None:
    """The server inherits an ignored SIGHUP; otherwise this process ends it."""
    code = "import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    command = [sys.executable, "-c", code, "--port", "1"]
    monkeypatch.setattr(mlflow_ui.mirror, "ui_command", lambda folder: command)
    usual = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        assert mlflow_ui.serve(study.path, print) == int(ignored)
        ends = [signal.getsignal(n) is signal.default_int_handler for n in usual]
        assert ends == [True, not ignored]
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def test_the_driver_does_not_import_mlflow() -> None:
    code = "import sys, autotune.tracking.mirror; sys.exit('mlflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("uri", [
    "sqlite:///mlflow.db", "sqlite:////abs/mlflow.db", "http://host", "https://u:p@host:5000/path",
    "postgresql://u:p@host/db", "postgresql+psycopg2://host/db", "mysql+pymysql://host/db",
    "mssql+pyodbc://host/db", "databricks", "databricks://profile",
])  # fmt: skip
def test_uris_that_may_be_stores(uri: str) -> None:
    check_uri(uri)


@pytest.mark.parametrize(("uri", "expected"), [
    ("ftp://me:s3cret@host", "unknown scheme 'ftp' (allowed: sqlite, postgresql"),
    ("./mlruns", "file store is retired; use sqlite:///PATH"),
    ("file:///tmp/mlruns", "file store is retired"),
    ("sqlite://mlflow.db", "must look like sqlite:///PATH"),
    ("http://", "must look like http://HOST"),
    ("http://me:s3cret@", "must look like http://HOST"),
    ("http://me:s3cret@host:port", "tracking URI: "),
    ("", "file store is retired"),
])  # fmt: skip
def test_uris_that_are_none(uri: str, expected: str) -> None:
    with pytest.raises(UserError, match=re.escape(expected)) as caught:
        check_uri(uri)
    assert "s3cret" not in str(caught.value)


def test_what_may_be_written_down() -> None:
    uri = "postgresql://me:p%40ss@host/db?password=hidden"
    assert label(uri) == "postgresql://host/db"
    assert label("http://a@host:1") == "http://host:1"
    assert label("databricks://Profile/") == "databricks://Profile/"
    for same in ("http://h:5000/", "HTTP://H:5000", "http://me:pw@h:5000//", "http://h:5000/?a=b"):
        assert label(same) == "http://h:5000"
    for same in ("https://h/ML", "https://H:443/ML/"):
        assert label(same) == "https://h/ML"
    assert label("http://h:443") == "http://h:443"
    message = f"cannot open {uri}: p@ss, me:p%40ss, hidden, t0ken, http://x:y@host"
    safe = redact(message, uri, {"MLFLOW_TRACKING_TOKEN": "t0ken"})
    assert safe == "cannot open postgresql://host/db: ***, ***, ***, ***, http://host"
