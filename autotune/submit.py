"""Studies as jobs of a Ray cluster: submitted, listed, followed and ended over Ray's Jobs API.

A job's driver is `autotune run` on the cluster. What it needs travels with it (`shipping.py`); its
study folder is on shared storage, or MLflow keeps what resume needs (`run --mirror`). Nothing here
ever holds a token longer than a connection, or puts one into a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autotune import shipping
from autotune.errors import UserError, unknown

_STUDY, _HOME = "autotune.study", "autotune.home"  # a job's metadata
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_STOP_SECONDS = 600  # from a SIGTERM, at which the driver checkpoints, to Ray's SIGKILL
_ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray prefers them to what it is told
_SECRET = re.compile(r"TOKEN|SECRET|PASS(WORD|WD)?|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
_ASK, _REFUSED = "Authentication required", "Authentication failed"
_TRIES = 5


@dataclass(frozen=True)
class Request:
    """A study to be submitted.

    `arguments` are those of `autotune run`, but `--out`: that is `out`, or a folder of the job's
    own where MLflow keeps the study. `home` says where it is kept: no two drivers may work on it.
    `cpus` and `resources` are reserved for the driver: with none it runs on the head node. `pip` is
    a requirements file, `env` variables for driver and workers.
    """

    study: str
    arguments: Sequence[str]
    home: str
    out: Path | None = None
    cpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    pip: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A job of autotune's on the cluster; times in seconds since 1970, `code` the driver's exit."""

    id: str
    study: str
    status: str
    home: str
    started: float | None
    ended: float | None
    code: int | None
    message: str

    @property
    def over(self) -> bool:
        return self.status in _ENDED


class Cluster:
    """The Jobs API of a Ray cluster, at its dashboard's address.

    Raises:
        UserError: in one line, whatever is wrong with the address, the token or an id.
    """

    def __init__(self, address: str | None) -> None:
        self.address = _address(address)
        self._client = _connect(self.address)

    def jobs(self) -> list[Job]:
        """The jobs that autotune submitted, oldest first."""
        with _errors(self.address):
            details = self._client.list_jobs()
        made = [_job(d) for d in details if (d.metadata or {}).get(_STUDY) and d.submission_id]
        return sorted(made, key=lambda job: (job.started or 0.0, job.id))

    def job(self, name: str) -> Job:
        """The job with this id.

        Raises:
            UserError: there is none; with the nearest right id.
        """
        found = {job.id: job for job in self.jobs()}
        if name not in found:
            if not found:
                raise UserError(f"unknown job {name!r}: {self.address} has no jobs of autotune")
            raise UserError(unknown("job", name, found))
        return found[name]

    def submit(self, request: Request, root: Path) -> str:
        """Send the working directory `root` and start the study's driver; the job's id.

        Raises:
            UserError: a driver of this study is alive, or the directory is too large.
        """
        self._refuse_second(request)
        with tempfile.TemporaryDirectory() as place, _errors(self.address):
            archive = shipping.pack(root, Path(place) / "working_dir.zip")
            for _ in range(_TRIES):
                name = _next_id(request.study, [job.id for job in self.jobs()])
                try:
                    return str(self._client.submit_job(**_submission(request, name, archive)))
                except RuntimeError as error:
                    if "already" not in str(error):
                        raise
                self._refuse_second(request)  # another submission was faster
        raise UserError(f"{self.address} refuses every id for a job: try again")

    def _refuse_second(self, request: Request) -> None:
        for job in self.jobs():
            if job.home == request.home and not job.over:
                raise UserError(
                    f"job {job.id} is running the study {job.study!r} in {job.home}: follow it "
                    f"with `autotune logs {job.id} --follow`, end it with `autotune cancel "
                    f"{job.id}`"
                )

    def logs(self, name: str) -> str:
        """What the job's driver has written so far."""
        self.job(name)
        with _errors(self.address):
            return str(self._client.get_job_logs(name))

    def follow(self, name: str, write: Callable[[str], object]) -> Job:
        """Write what the job's driver writes, until it ends; the job as it ended."""
        self.job(name)

        async def tail() -> None:
            async for chunk in self._client.tail_job_logs(name):
                write(chunk)

        with _errors(self.address):
            asyncio.run(tail())
        return self.wait(name, 60.0)

    def cancel(self, name: str) -> bool:
        """Tell the job's driver to checkpoint and leave; False if it has ended already."""
        if self.job(name).over:
            return False
        with _errors(self.address):
            return bool(self._client.stop_job(name))

    def wait(self, name: str, seconds: float) -> Job:
        """The job once it is over, or as it is after so many seconds."""
        end = time.monotonic() + seconds
        while not (job := self.job(name)).over and time.monotonic() < end:
            time.sleep(0.5)
        return job


def secret(variable: str) -> bool:
    """Whether a variable's name says that its value must not be put into a job.

    >>> secret("MLFLOW_TRACKING_PASSWORD"), secret("AUTOTUNE_DATA")
    (True, False)
    """
    return _SECRET.search(variable) is not None


def _submission(request: Request, name: str, archive: Path) -> dict[str, Any]:
    env = {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS), **request.env}
    runtime: dict[str, Any] = {"working_dir": str(archive), "env_vars": env}
    if request.pip is not None:
        runtime["pip"] = str(request.pip)
    out = ["--out", str(request.out or Path("studies") / name)]
    words = ["python", "-m", "autotune.cli", *request.arguments, *out]
    return {
        # `exec`: the driver itself gets the signal that ends the job, and no shell is left behind.
        "entrypoint": f"exec {shlex.join(words)}",
        "submission_id": name,
        "runtime_env": runtime,
        "metadata": {_STUDY: request.study, _HOME: request.home},
        "entrypoint_num_cpus": request.cpus or None,
        "entrypoint_resources": dict(request.resources) or None,
    }


def _next_id(study: str, taken: Sequence[str]) -> str:
    """The next id of the study's jobs: two submissions at once ask for the same one.

    >>> _next_id("Digits LARS", ["digits-lars-1", "digits-lars-9", "digits-2"])
    'digits-lars-10'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", study.lower()).strip("-") or "study"
    numbers = [int(m[1]) for name in taken if (m := re.fullmatch(rf"{slug}-(\d+)", name))]
    return f"{slug}-{max(numbers, default=0) + 1}"


def _job(details: Any) -> Job:
    metadata = details.metadata or {}
    started, ended = details.start_time, details.end_time  # milliseconds
    return Job(
        details.submission_id,
        metadata[_STUDY],
        str(getattr(details.status, "value", details.status)),
        metadata.get(_HOME, ""),
        started / 1000 if started else None,
        ended / 1000 if ended else None,
        details.driver_exit_code,
        details.message or "",
    )


# --- the connection -------------------------------------------------------------------------------


def _address(given: str | None) -> str:
    """The dashboard's address: given, of Ray's variables, or on this machine.

    Raises:
        UserError: it is none of a dashboard, or it holds a password.
    """
    told = [os.environ.get(name, "") for name in _ADDRESSES]
    address = given or next((a for a in told if a.startswith("http")), "http://127.0.0.1:8265")
    parts = urlsplit(address)
    form = "--address must be the dashboard's, like http://HEAD:8265"
    if "@" in parts.netloc:
        raise UserError(f"{form}, without user and password: a token comes from RAY_AUTH_TOKEN")
    try:
        right = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        right = False
    if not right:
        raise UserError(f"{form}, but got {address!r}")
    return address.rstrip("/")


def _connect(address: str) -> Any:
    _reach(address)
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    found = None if mode == "disabled" else _token()
    if mode == "token" and found is None:
        raise UserError(_missing(address))
    try:
        return _client(address, found[0] if found and mode == "token" else None)
    except PermissionError as error:
        # A token is shown to a cluster only where the user said so, or where the cluster asks.
        if _ASK in str(error) and found and mode != "token":
            with contextlib.suppress(PermissionError):
                return _client(address, found[0])
        if found is None or mode == "disabled":
            raise UserError(_missing(address)) from None
        raise UserError(
            f"the cluster at {address} refuses the token of {found[1]}: `ray get-auth-token` on "
            "its head prints the right one"
        ) from None


def _client(address: str, token: str | None) -> Any:
    """A client of Ray's Jobs API; a PermissionError where the cluster wants another token."""
    with _errors(address, PermissionError), _without(*_ADDRESSES):
        from ray.job_submission import JobSubmissionClient

        for chatty in ("dashboard_sdk", "job.sdk"):
            logging.getLogger(f"ray.dashboard.modules.{chatty}").setLevel(logging.WARNING)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        return JobSubmissionClient(address, headers=headers)


def _token() -> tuple[str, str] | None:
    """Ray's token and where it stands, looked for where Ray looks for it.

    Raises:
        UserError: the file that RAY_AUTH_TOKEN_PATH names holds none.
    """
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token, "RAY_AUTH_TOKEN"
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    if token:
        return token, str(path)
    if named:
        raise UserError(f"RAY_AUTH_TOKEN_PATH: {named!r} cannot be read, or holds no token")
    return None


def _missing(address: str) -> str:
    return (
        f"the cluster at {address} wants a token: set RAY_AUTH_TOKEN, name its file in "
        "RAY_AUTH_TOKEN_PATH or put it into ~/.ray/auth_token (on the head, `ray get-auth-token` "
        "prints it), and do not set RAY_AUTH_MODE=disabled"
    )


def _reach(address: str) -> None:
    """Say at once that nobody answers: Ray itself sets no limit to how long it tries."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray dashboard answers at {address}: {error}") from None


@contextlib.contextmanager
def _errors(address: str, refused: type[Exception] = UserError) -> Iterator[None]:
    """What Ray's client raises, in one line; `refused` where it is about the token."""
    try:
        yield
    except (UserError, PermissionError):
        raise
    except Exception as error:
        line = " ".join(str(error).split())
        if _ASK in line or _REFUSED in line:
            raise refused(f"the cluster at {address} refuses the token: {line:.80}") from None
        if "ray[default]" in line:
            raise UserError("Ray's Jobs API needs `pip install 'ray[default]'`") from None
        ours = type(error).__module__.partition(".")[0] in ("aiohttp", "ray")
        if not ours and not isinstance(error, OSError | RuntimeError | KeyError | ValueError):
            raise
        what = line or type(error).__name__
        raise UserError(f"the Ray dashboard at {address}: {what:.300}") from None


@contextlib.contextmanager
def _without(*names: str) -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
