"""MLflow's UIs of several studies, each started when it is asked for."""

from __future__ import annotations

import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from autotune.cli import mlflow_ui
from autotune.cli.console import say
from autotune.study.manifest import Manifest
from autotune.tracking import mirror
from autotune.tracking.uris import is_server, without_credentials

_MOST = 3  # a server takes some hundred megabytes: the first of more gives way


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    address: str = ""  # of the leaderboard, once it answers


class MlflowServers:
    """The servers, by study folder."""

    def __init__(self) -> None:
        self._servers: dict[Path, _Server] = {}
        self._lock = threading.Lock()

    def start(self, folder: Path) -> None:
        """Start the UI of a study's own store, if it is not there yet.

        Raises:
            UserError: the study is in no store of its own, or the store is damaged.
        """
        with self._lock:
            known = self._servers.get(folder)
            if known is not None and known.process.poll() is None:
                return
            manifest = Manifest.read(folder)
            mlflow_ui.check_own_store(manifest)
            mlflow_ui.prepare(folder, manifest.name, say)
            command = mirror.ui_command(folder)
            process = subprocess.Popen(  # noqa: S603
                command,
                env=mirror.environment(),
                stdout=subprocess.DEVNULL,  # it prints a line for each request
                stderr=subprocess.DEVNULL,
            )
            server = self._servers[folder] = _Server(process)
            for old in list(self._servers)[:-_MOST]:
                self._end(old)
        work = threading.Thread(target=_wait, args=(folder, server, command, manifest), daemon=True)
        work.start()

    def state(self, folder: Path, uri: str | None) -> dict[str, str]:
        """Where the study's MLflow is: `state` is off, startable, starting, ready or elsewhere."""
        if uri == "off":
            return {"state": "off"}
        if uri is not None:
            plain = without_credentials(uri) or ""
            web = is_server(uri) and plain.startswith("http")
            return {"state": "ready", "url": plain} if web else {"state": "elsewhere"}
        server = self._servers.get(folder)
        if server is None or server.process.poll() is not None:
            return {"state": "startable"}
        return {"state": "ready", "url": server.address} if server.address else _STARTING

    def close(self) -> None:
        """End all servers."""
        with self._lock:
            for folder in list(self._servers):
                self._end(folder)

    def _end(self, folder: Path) -> None:
        process = self._servers.pop(folder).process
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_STARTING = {"state": "starting"}


def _wait(folder: Path, server: _Server, command: list[str], manifest: Manifest) -> None:
    """Note the leaderboard's address once the server answers."""
    lines = mlflow_ui.where(command, manifest, server.process)
    server.address = lines[0].partition(": ")[2] if lines else ""
    if not lines and server.process.poll() not in (0, -signal.SIGTERM):
        say(f"MLflow's UI of {folder} ended: `autotune ui {folder}` shows why")
