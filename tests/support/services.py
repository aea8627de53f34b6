"""Real services on loopback for tests: PostgreSQL, and an MLflow server on it.

Passwords are made up for each start and handed over in the environment or in files that only their
owner can read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from heads import free_ports

from autotune.tracking.mirror import environment

START_SECONDS = 900.0
USER = "mlflow"


def postgres_folder() -> Path | None:
    """Where PostgreSQL's programs are; Debian keeps them off the path."""
    found = [Path(p).resolve().parent for p in [shutil.which("initdb")] if p]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").is_file()), None)


def missing() -> str:
    """Why the services cannot be started here; an empty string if they can."""
    if postgres_folder() is None:
        return "PostgreSQL is not installed (apt-get install postgresql)"
    for module in ("psycopg2", "flask_wtf"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed (pip install 'time-to-target[services]')"
    return ""


class Postgres:
    """A database server in a folder of its own, run by a user who is not root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.password = secrets.token_hex(16)
        (self.port,) = free_ports(1)
        self._programs = postgres_folder()
        self._user = "nobody" if os.geteuid() == 0 else None
        folder.mkdir(mode=0o700)
        if self._user is not None:
            shutil.chown(folder, self._user)
        word = folder / "password"
        word.write_text(self.password)
        if self._user is not None:
            shutil.chown(word, self._user)
        self._call("initdb", "-D", str(folder / "data"), "-U", USER, "-A", "scram-sha-256",
                   f"--pwfile={word}", "--no-sync")  # fmt: skip
        self.start()
        self._call("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, USER)

    @property
    def uri(self) -> str:
        """Without the password: that is in PGPASSWORD, where no process list shows it."""
        return f"postgresql+psycopg2://{USER}@127.0.0.1:{self.port}/{USER}"

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
        }
        words = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._call("pg_ctl", "-D", str(self.folder / "data"), "-w", "-t", "900", "-o", words,
                   "-l", str(self.folder / "log"), "start")  # fmt: skip

    def stop(self) -> None:
        """At once, as when a machine goes down: connections break."""
        data = str(self.folder / "data")
        self._call("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")

    def _call(self, program: str, *arguments: str) -> None:
        assert self._programs is not None
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            cwd=self.folder,
            user=self._user,
            env={**os.environ, "PGPASSWORD": self.password, "LC_ALL": "C"},
            stdout=subprocess.DEVNULL,
            timeout=START_SECONDS,
        )


class Tracking:
    """An MLflow server with a folder for artifacts; with `auth`, it asks for user and password."""

    def __init__(
        self, folder: Path, backend: str, env: Mapping[str, str] | None = None, auth: bool = False
    ) -> None:
        (port,) = free_ports(1)
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.uri = f"http://127.0.0.1:{port}"
        self.user, self.password = "admin", secrets.token_hex(16)
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"),
            *("--port", str(port), "--backend-store-uri", backend),
            *("--artifacts-destination", str(folder / "artifacts")),
            *(("--app-name", "basic-auth") if auth else ()),
        ]
        own = {**environment(), **(env or {})}
        if auth:
            own |= self._auth()
        with open(folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env=own, stdout=log, stderr=log, start_new_session=True
            )
        self._wait()

    @property
    def credentials(self) -> dict[str, str]:
        """The variables that MLflow's clients read."""
        return {
            "MLFLOW_TRACKING_USERNAME": self.user,
            "MLFLOW_TRACKING_PASSWORD": self.password,
        }

    def _auth(self) -> dict[str, str]:
        config = self.folder / "auth.ini"
        config.write_text(
            "[mlflow]\ndefault_permission = READ\n"
            f"database_uri = sqlite:///{self.folder / 'auth.db'}\nadmin_username = {self.user}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        )
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(config),
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(16),
        }

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(f"{self.uri}/health", timeout=60).read() == b"OK":
                    return
            time.sleep(0.2)
        self.stop()
        raise AssertionError(f"no MLflow server: {(self.folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def services() -> Iterator[tuple[Postgres, Tracking]]:
    """PostgreSQL, and an MLflow server on it that asks for a password."""
    place = Path(tempfile.mkdtemp(prefix="services", dir="/tmp"))
    place.chmod(0o711)  # the database's user passes through
    try:
        postgres = Postgres(place / "postgres")
        try:
            secret = {"PGPASSWORD": postgres.password}
            tracking = Tracking(place / "mlflow", postgres.uri, secret, auth=True)
            try:
                yield postgres, tracking
            finally:
                tracking.stop()
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                postgres.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)
