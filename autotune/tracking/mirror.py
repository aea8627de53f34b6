"""Starts and ends the process that shows the journal in MLflow, and never gets in a study's way.

The process (`python -m autotune.cli.mirror_process DIR`) reads the journal on its own, so that the
driver does nothing for it but to start it and, by closing a pipe, to say that the study has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from autotune.errors import UserError
from autotune.tracking.uris import label, redact

CURSOR = "mlflow.json"
STORE = "mlflow.db"
FURTHER = "--further"  # of `autotune.tracking.fetch`: has the study of this folder gone on?
REFUSED = 2  # the code of `autotune.tracking.fetch` where a study is another driver's
NO_COPY = 69  # the code of `autotune.tracking.fetch` where there is nothing (EX_UNAVAILABLE)
GAVE_UP = 75  # the process's exit code when the store stayed out of reach (EX_TEMPFAIL)
SENT_AWAY = 143  # its exit code when the process of another driver has taken over
_RESTARTS = 3
_WAIT_SECONDS = 30.0
_ASKED_SECONDS = 60.0  # that a store may take to say whether a study has gone on elsewhere
_COPY_SECONDS = 570.0  # where the folder itself may be gone with the job
_QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_CONFIGURE_LOGGING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# One slow answer may take 45 s; the mirror itself tries again, and asks the store what it has.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "45"}


class Mirror:
    """The process that shows the study in `folder` in MLflow, from now until the study has ended.

    Args:
        folder: the study folder; its `experiment.json` is there before the journal's first line.
        tracking_uri: MLflow's tracking store, perhaps with credentials (they are handed over in
            the environment and written nowhere); by default `mlflow.db` in the folder.
        keeps_copy: whether MLflow keeps a copy of what resume needs; `close` then waits for it.
        patience_seconds: how long the process goes on trying after the study has ended.

    Nothing raises: what goes wrong is told in one line on stderr, and more in `DIR/mlflow.log`.
    """

    def __init__(
        self,
        folder: Path,
        tracking_uri: str | None,
        *,
        keeps_copy: bool = False,
        patience_seconds: float = 3600.0,
    ) -> None:
        self.folder = folder.absolute()
        self._uri = tracking_uri or default_uri(folder)
        self._patience = patience_seconds
        self._close_seconds = _COPY_SECONDS if keeps_copy else _WAIT_SECONDS
        self._lock = threading.Lock()
        self._ending = False
        self._process: subprocess.Popen[bytes] | None = None
        self._caught_up = False
        self._waited = False
        self._keeper = threading.Thread(target=self._keep, name="mlflow-mirror", daemon=True)
        self._keeper.start()

    @property
    def pid(self) -> int | None:
        """The process's id, once it has been started."""
        return self._process.pid if self._process is not None else None

    def close(self, wait_seconds: float | None = None) -> bool:
        """Tell the process that the study has ended; whether MLflow shows all of it in time.

        Otherwise the process stays behind and goes on trying.
        """
        if wait_seconds is None:
            wait_seconds = self._close_seconds
        with self._lock:
            self._ending = True
            _hang_up(self._process)
        self._keeper.join(wait_seconds)
        if not self._caught_up and not self._waited:
            print(_behind(self.folder), file=sys.stderr)
        self._waited = True
        return self._caught_up

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._waited:
            self.close()

    def _keep(self) -> None:
        """Keep one process alive, until it says that all is shown or that it gave up."""
        for _ in range(1 + _RESTARTS):
            try:
                with self._lock:
                    self._process = self._spawn()
                    if self._ending:
                        _hang_up(self._process)
                code = self._process.wait()
            except OSError:
                continue
            sent_away = code in (SENT_AWAY, -signal.SIGTERM)  # before it could handle the signal
            taken_over = sent_away and self._ending
            if code in (0, GAVE_UP) or taken_over:
                self._caught_up = code == 0
                return
        if not self._ending:
            print(f"MLflow is not written: see {self.folder / 'mlflow.log'}", file=sys.stderr)

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "autotune.cli.mirror_process", str(self.folder)]
        with open(self.folder / "mlflow.log", "ab") as log:
            return subprocess.Popen(  # noqa: S603 (a list of words and no shell)
                [*command, str(self._patience)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                env=environment(self._uri),
            )


def catch_up(folder: Path, tracking_uri: str | None, wait_seconds: float) -> bool:
    """Show a study that has ended; whether MLflow shows all of it within `wait_seconds`."""
    return Mirror(folder, tracking_uri).close(wait_seconds)


def fetch(uri: str, study: str, folder: Path) -> str:
    """Make the study folder `folder` of the copy that MLflow keeps; why not, if it keeps none.

    Raises:
        UserError: the store cannot be reached, the copy is damaged, or a driver is working on it.
    """
    code, said = _asked(uri, study, str(folder.absolute()))
    if code == NO_COPY:
        return said[-1]
    print("\n".join(said), file=sys.stderr)
    return ""


def refuse_second(uri: str, study: str) -> None:
    """Refuse to begin a study in a new folder that a driver elsewhere is working on.

    Raises:
        UserError: one is, or the store cannot be reached.
    """
    _asked(uri, study)


def refuse_stale(uri: str, folder: Path) -> None:
    """Refuse to go on with a study in a folder that it has left, by way of its copy in MLflow.

    Where MLflow does not answer, the study goes on: its tracking is not to stand in its way.

    Raises:
        UserError: it has gone on elsewhere.
    """
    with contextlib.suppress(_StoreError, subprocess.TimeoutExpired):
        _asked(uri, FURTHER, str(folder.absolute()), seconds=_ASKED_SECONDS)


class _StoreError(UserError):
    """The store cannot be reached."""


def _asked(uri: str, *arguments: str, seconds: float | None = None) -> tuple[int, list[str]]:
    """What `autotune.tracking.fetch` ends with, 0 or NO_COPY, and the lines that it says."""
    command = [sys.executable, "-m", "autotune.tracking.fetch", *arguments]
    done = subprocess.run(  # noqa: S603
        command, env=environment(uri), capture_output=True, text=True, timeout=seconds, check=False
    )
    said = done.stderr.strip().splitlines() or [""]
    if done.returncode not in (0, NO_COPY):
        kind = UserError if done.returncode == REFUSED else _StoreError
        raise kind(redact(said[-1], uri) or f"{label(uri)}: code {done.returncode}")
    return done.returncode, said


def default_uri(folder: Path) -> str:
    """The tracking store of a study folder."""
    return f"sqlite:///{folder.absolute() / STORE}"


def ui_command(folder: Path) -> list[str]:
    """The command that serves MLflow's UI for this study's own store on loopback.

    Run it with `environment()`, which keeps MLflow from reporting usage.
    """
    options = {
        "--backend-store-uri": default_uri(folder),
        "--artifacts-destination": (folder.absolute() / "artifacts").as_uri(),
        "--host": "127.0.0.1",
        "--port": str(next(_free_ports())),
        "--workers": "1",
    }
    return [sys.executable, "-m", "mlflow", "ui", *(word for o in options.items() for word in o)]


def environment(tracking_uri: str | None = None) -> dict[str, str]:
    """The environment of a process that uses MLflow: quiet, impatient, off the accelerators."""
    here = Path(__file__).parents[2]
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if here.name not in ("site-packages", "dist-packages"):
        paths.append(str(here))
    told = {"MLFLOW_TRACKING_URI": tracking_uri} if tracking_uri else {}
    path = {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    return {**_PATIENCE, **os.environ, **_QUIET, **told, **path}


def _hang_up(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.stdin is not None:
        process.stdin.close()


def _behind(folder: Path) -> str:
    try:
        reason = json.loads((folder / CURSOR).read_bytes()).get("behind", "")
    except (OSError, ValueError):
        reason = ""
    why = reason or "it is still being written"
    return f"MLflow is behind: {why}; `autotune resume {folder}` catches up"


def _free_ports() -> Iterator[int]:
    for port in (*range(5000, 5100), 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            yield probe.getsockname()[1]
