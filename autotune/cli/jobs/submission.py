"""Studies as jobs of a Ray cluster: submitted, listed, followed and ended over Ray's Jobs API.

A job's driver is `autotune run` on the cluster. What it needs travels with it (`archive.py`); its
study folder is on shared storage, or MLflow keeps what resume needs (`run --mirror`). No token is
ever put into a job.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.cli.jobs.archive import Selection, pack
from autotune.cli.jobs.client import connect, dashboard, errors
from autotune.errors import UserError, unknown

_STUDY, _HOME = "autotune.study", "autotune.home"  # a job's metadata
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_STOP_SECONDS = 600  # from a SIGTERM, at which the driver checkpoints, to Ray's SIGKILL
_TRIES = 5


@dataclass(frozen=True)
class Submission:
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
        self.address = dashboard(address)
        self._client = connect(self.address)

    def jobs(self) -> list[Job]:
        """The jobs that autotune submitted, oldest first."""
        with errors(self.address):
            details = self._client.list_jobs()
        made = [_job(d) for d in details if (d.metadata or {}).get(_STUDY) and d.submission_id]
        return sorted(made, key=lambda job: (job.started or 0.0, job.id))

    def job(self, name: str) -> Job:
        """The job with this id.

        Raises:
            UserError: there is none; with the nearest right id.
        """
        jobs = {job.id: job for job in self.jobs()}
        if name not in jobs:
            if not jobs:
                raise UserError(f"unknown job {name!r}: {self.address} has no jobs of autotune")
            raise UserError(unknown("job", name, jobs))
        return jobs[name]

    def submit(self, submission: Submission, selection: Selection) -> str:
        """Send what is selected and start the study's driver; the job's id.

        Raises:
            UserError: a driver of this study is alive, or the directory is too large.
        """
        self._refuse_second(submission)
        with tempfile.TemporaryDirectory() as place, errors(self.address):
            archive = pack(selection, Path(place) / "working_dir.zip")
            for _ in range(_TRIES):
                name = _next_id(submission.study, [job.id for job in self.jobs()])
                try:
                    return str(self._client.submit_job(**_request(submission, name, archive)))
                except RuntimeError as error:
                    if "already" not in str(error):
                        raise
                self._refuse_second(submission)  # another submission was faster
        raise UserError(f"{self.address} refuses every id for a job: try again")

    def _refuse_second(self, submission: Submission) -> None:
        for job in self.jobs():
            if job.home == submission.home and not job.over:
                raise UserError(
                    f"job {job.id} is running the study {job.study!r} in {job.home}: follow it "
                    f"with `autotune logs {job.id} --follow`, end it with `autotune cancel "
                    f"{job.id}`"
                )

    def logs(self, name: str) -> str:
        """What the job's driver has written so far."""
        self.job(name)
        with errors(self.address):
            return str(self._client.get_job_logs(name))

    def follow(self, name: str, write: Callable[[str], object]) -> Job:
        """Write what the job's driver writes, until it ends; the job as it ended."""
        self.job(name)

        async def tail() -> None:
            async for chunk in self._client.tail_job_logs(name):
                write(chunk)

        with errors(self.address):
            asyncio.run(tail())
        return self.wait(name, 60.0)

    def cancel(self, name: str) -> bool:
        """Tell the job's driver to checkpoint and leave; False if it has ended already."""
        if self.job(name).over:
            return False
        with errors(self.address):
            return bool(self._client.stop_job(name))

    def wait(self, name: str, seconds: float) -> Job:
        """The job once it is over, or as it is after so many seconds."""
        end = time.monotonic() + seconds
        while not (job := self.job(name)).over and time.monotonic() < end:
            time.sleep(0.5)
        return job


def _request(submission: Submission, name: str, archive: Path) -> dict[str, Any]:
    env = {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS), **submission.env}
    runtime: dict[str, Any] = {"working_dir": str(archive), "env_vars": env}
    if submission.pip is not None:
        runtime["pip"] = str(submission.pip)
    out = ["--out", str(submission.out or Path("studies") / name)]
    words = ["python", "-m", "autotune", *submission.arguments, *out]
    return {
        # `exec`: the driver itself gets the signal that ends the job, and no shell is left behind.
        "entrypoint": f"exec {shlex.join(words)}",
        "submission_id": name,
        "runtime_env": runtime,
        "metadata": {_STUDY: submission.study, _HOME: submission.home},
        "entrypoint_num_cpus": submission.cpus or None,
        "entrypoint_resources": dict(submission.resources) or None,
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
