"""Start and end the process that writes the journal to MLflow, without ever blocking a study.

The process (`python -m autotune.cli.mirror_process DIR`) reads the journal itself. The driver only
starts it, and closes a pipe when the study has ended.
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
from autotune.trial.plain_text import plain_text

CURSOR = "mlflow.json"
STORE = "mlflow.db"
ARTIFACTS = "artifacts"  # beside the store
FURTHER = "--further"  # of `tracking.fetch`: check whether a folder's study was continued
REFUSED = 2  # the exit code of `autotune.tracking.fetch` where another driver has the study
NO_COPY = 69  # its exit code where there is no copy (EX_UNAVAILABLE)
GAVE_UP = 75  # the mirror's exit code when the store stayed unreachable (EX_TEMPFAIL)
REPLACED = 143  # its exit code when another driver's mirror has taken over
_RESTARTS = 3
_WAIT_SECONDS = 30.0
_CHECK_SECONDS = 60.0  # the time limit of the check whether a study was continued elsewhere
_COPY_SECONDS = 570.0  # where the folder may be removed together with the job
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
# A request may take 45 s; the mirror itself retries, after reading the state of the store.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "45"}


class Mirror:
    """The process that writes the study in `folder` to MLflow until the study has ended.

    Args:
        folder: the study folder; its `experiment.json` is there before the journal's first line.
        tracking_uri: MLflow's tracking store, perhaps with credentials (they are handed over in
            the environment and written nowhere); by default `mlflow.db` in the folder.
        keeps_copy: whether MLflow keeps a copy of what resume needs; `close` then waits for it.
        patience_seconds: how long the process retries after the study has ended.

    No method raises: an error is one line on stderr, with details in `DIR/mlflow.log`.
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
        self._was_there = self.folder.is_dir()
        self._uri = tracking_uri or default_uri(folder)
        self._patience = patience_seconds
        self._close_seconds = _COPY_SECONDS if keeps_copy else _WAIT_SECONDS
        self._lock = threading.Lock()
        self._ending = False
        self._process: subprocess.Popen[bytes] | None = None
        self._caught_up = False
        self._waited = False
        self._supervisor = threading.Thread(
            target=self._supervise, name="mlflow-mirror", daemon=True
        )
        self._supervisor.start()

    @property
    def pid(self) -> int | None:
        """The process's id, once it has been started."""
        return self._process.pid if self._process is not None else None

    def close(self, wait_seconds: float | None = None) -> bool:
        """Signal the end of the study; return whether MLflow has all of it in time.

        Otherwise the process continues to retry in the background.
        """
        if wait_seconds is None:
            wait_seconds = self._close_seconds
        with self._lock:
            self._ending = True
            _close_pipe(self._process)
        self._supervisor.join(wait_seconds)
        if not self._caught_up and not self._waited and not self._taken_away():
            print(plain_text(_behind(self.folder)), file=sys.stderr)
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

    def _taken_away(self) -> bool:
        """Whether the folder was deleted or moved since, which the study itself says."""
        return self._was_there and not self.folder.is_dir()

    def _supervise(self) -> None:
        """Restart the process until it has written everything or has given up."""
        for _ in range(1 + _RESTARTS):
            try:
                with self._lock:
                    self._process = self._start_process()
                    if self._ending:
                        _close_pipe(self._process)
                code = self._process.wait()
            except OSError:
                continue
            replaced = code in (REPLACED, -signal.SIGTERM)  # SIGTERM: no handler was set yet
            taken_over = replaced and self._ending
            if code in (0, GAVE_UP) or taken_over:
                self._caught_up = code == 0
                return
        if not self._ending and not self._taken_away():
            print(f"MLflow is not written: see {self.folder / 'mlflow.log'}", file=sys.stderr)

    def _start_process(self) -> subprocess.Popen[bytes]:
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
    """Write an ended study to MLflow; return whether all is written within `wait_seconds`."""
    return Mirror(folder, tracking_uri).close(wait_seconds)


def fetch(uri: str, study: str, folder: Path) -> str:
    """Make the study folder `folder` from the copy in MLflow; if there is none, return why.

    Raises:
        UserError: the store is unreachable, the copy is damaged, or a driver works on the study.
    """
    code, lines = _run_fetch(uri, study, str(folder.absolute()))
    if code == NO_COPY:
        return lines[-1]
    print(plain_text("\n".join(lines)), file=sys.stderr)
    return ""


def refuse_second(uri: str, study: str) -> None:
    """Refuse to start a study in a new folder while a driver elsewhere works on it.

    Raises:
        UserError: a driver does, or the store is unreachable.
    """
    _run_fetch(uri, study)


def refuse_stale(uri: str, folder: Path) -> None:
    """Refuse to continue a study in a folder if it was continued elsewhere from its copy in MLflow.

    If MLflow does not answer, the study continues: tracking must not block it.

    Raises:
        UserError: it was continued elsewhere.
    """
    with contextlib.suppress(_StoreError, subprocess.TimeoutExpired):
        _run_fetch(uri, FURTHER, str(folder.absolute()), seconds=_CHECK_SECONDS)


class _StoreError(UserError):
    """The store is unreachable."""


def _run_fetch(uri: str, *arguments: str, seconds: float | None = None) -> tuple[int, list[str]]:
    """Run `autotune.tracking.fetch`; return its exit code, 0 or NO_COPY, and its lines."""
    command = [sys.executable, "-m", "autotune.tracking.fetch", *arguments]
    done = subprocess.run(  # noqa: S603
        command, env=environment(uri), capture_output=True, text=True, timeout=seconds, check=False
    )
    lines = done.stderr.strip().splitlines() or [""]
    if done.returncode not in (0, NO_COPY):
        kind = UserError if done.returncode == REFUSED else _StoreError
        raise kind(redact(lines[-1], uri) or f"{label(uri)}: code {done.returncode}")
    return done.returncode, lines


def default_uri(folder: Path) -> str:
    """The tracking store of a study folder."""
    return f"sqlite:///{folder.absolute() / STORE}"


def ui_command(folder: Path, port: int | None = None) -> list[str]:
    """The command that serves MLflow's UI for this study's own store on loopback.

    Run it with `environment()`, which keeps MLflow from reporting usage. Without a `port`, it is
    one that is free now.
    """
    options = {
        "--backend-store-uri": default_uri(folder),
        "--artifacts-destination": (folder.absolute() / ARTIFACTS).as_uri(),
        "--host": "127.0.0.1",
        "--port": str(port or next(_free_ports())),
        "--workers": "1",
    }
    return [sys.executable, "-m", "mlflow", "ui", *(word for o in options.items() for word in o)]


def environment(tracking_uri: str | None = None) -> dict[str, str]:
    """The environment of an MLflow process: quiet, with short timeouts, without accelerators."""
    here = Path(__file__).parents[2]
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if here.name not in ("site-packages", "dist-packages"):
        paths.append(str(here))
    store = {"MLFLOW_TRACKING_URI": tracking_uri} if tracking_uri else {}
    path = {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    return {**_PATIENCE, **os.environ, **_QUIET, **store, **path}


def _close_pipe(process: subprocess.Popen[bytes] | None) -> None:
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
