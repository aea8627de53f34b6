"""A Ray head with its dashboard and a token, on this machine, for tests of the Jobs API."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
START_SECONDS = 900.0
_PORTS = (
    "--port",
    "--dashboard-port",
    "--dashboard-agent-listen-port",
    "--metrics-export-port",
    "--ray-client-server-port",
)


@dataclass(frozen=True)
class Head:
    """A running head: its dashboard's address, and the file of its token."""

    address: str
    token_file: Path

    @property
    def token(self) -> str:
        return self.token_file.read_text()


_BELOW = 32768  # from here on the system gives ports to whoever connects somewhere
_SPAN = 1000
_next_port = 0


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, and that no test process beside this one is given either.

    Each takes them from a range of its own, and none twice before it has used up the range.
    """
    global _next_port
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _BELOW - _SPAN * (1 + worker % 16)
    _next_port = _next_port or os.getpid() % _SPAN
    found: list[int] = []
    while len(found) < count:
        _next_port += 1
        port = first + _next_port % _SPAN
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


@contextlib.contextmanager
def head(cpus: int = 2) -> Iterator[Head]:
    """A head that takes its own token only; everything that it started ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="head", dir="/tmp"))  # Ray's sockets need a short path
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *(f"{name}={port}" for name, port in ports.items()),
        *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"),
        *(f"--temp-dir={folder / 'ray'}", f"--num-cpus={cpus}"),
        *('--resources={"driver": 1}', "--object-store-memory=100000000"),
    ]
    address = f"http://127.0.0.1:{ports['--dashboard-port']}"
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, env=_environment(token), stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait(address, process, folder / "log")
        yield Head(address, token)
    finally:
        _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _environment(token: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MLFLOW_"))}
    return {
        **kept,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(":"),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",  # a job has no use for processes beforehand
        "RAY_raylet_start_wait_time_s": str(int(START_SECONDS)),  # on a machine that is busy
    }


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the dashboard answers, if only that it wants a token."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/api/jobs/", timeout=60)
        except urllib.error.HTTPError as error:
            if error.code == 401:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"no Ray head: {log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs([psutil.Process(process.pid), *family], timeout=60)
        for left in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
    process.wait()
