"""The process that shows a study in MLflow: `python -m autotune.cli.mirror_process`.

A `Mirror` starts it. It follows the journal of a study folder until its standard input ends, which
says that no driver runs the study any more; then it writes what is missing, ends the runs and
leaves with 0. The tracking URI comes in the environment, because it may hold a password.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, TextIO, cast

from autotune.tracking.cursor import Cursor
from autotune.tracking.follow import follow
from autotune.tracking.mirror import (
    ARTIFACTS,
    CURSOR,
    GAVE_UP,
    REPLACED,
    STORE,
    default_uri,
)
from autotune.tracking.mlflow_store import MlflowStore
from autotune.tracking.own_store import OwnFile, relocate
from autotune.tracking.run_content import StudyInfo
from autotune.tracking.sync import Copier
from autotune.tracking.uris import error_line, label, redact

_HURRIED_SECONDS = 120.0  # for what is missing when a job was cancelled
_SCRATCH = ".view-"
_MODULE = "autotune.cli.mirror_process"


class Driver:
    """The process that started this one: it is gone when it hung up, or died."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._gone = False
        self.hurried = False

    def gone(self, seconds: float) -> bool:
        """Wait so long, or until the driver is gone; whether it is."""
        if self._gone:
            time.sleep(seconds)
        else:
            ready, _, _ = select.select([0], [], [], seconds)
            hung_up = bool(ready) and not os.read(0, 1)
            self._gone = hung_up or os.getppid() != self._parent
        return self._gone

    def outlive(self, number: int, frame: object) -> None:
        """A SIGTERM's handler: as long as the driver lives, the driver says when to end.

        A job that is cancelled sends the signal to the driver and to all of its children; the
        driver then has more to write. One whose driver is gone ends, and takes its files along.
        """
        if self.gone(0.0):
            sys.exit(REPLACED)
        self.hurried = True


class Redacted:
    """A text stream in front of another that leaves out the tracking store's secrets."""

    def __init__(self, stream: TextIO, uri: str) -> None:
        self._stream = stream
        self._uri = uri

    def write(self, text: str) -> int:
        self._stream.write(redact(text, self._uri))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def main(arguments: Sequence[str]) -> int:
    """Show the study in the folder `arguments[0]`; trying for `arguments[1]` seconds at its end."""
    folder, uri = Path(arguments[0]), os.environ["MLFLOW_TRACKING_URI"]
    os.nice(max(0, 19 - os.nice(0)))
    own = OwnFile(folder) if uri == default_uri(folder) else None
    driver = Driver()
    signal.signal(signal.SIGTERM, driver.outlive)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it ends when the driver has

    def restart() -> NoReturn:
        # MLflow keeps a removed file open for as long as this process lives.
        os.execv(sys.executable, [sys.executable, "-m", _MODULE, *arguments])  # noqa: S606

    def connect(facts: StudyInfo) -> MlflowStore:
        if own is None:
            return MlflowStore(uri, facts, None, _say)
        store = _own_store(own, folder, facts)
        return restart() if store is None else store

    def gone(seconds: float) -> bool:
        is_gone = driver.gone(seconds)
        if own is not None and own.replaced():
            restart()
        return is_gone

    def explain(error: Exception) -> str:
        return error_line(error, uri)[:300]

    with _alone(folder), _scratch(folder):
        cursor = Cursor(folder / CURSOR, "default" if own else label(uri))
        copier = Copier(folder, connect, cursor, _say, _write_report)

        def patience() -> float:
            return _HURRIED_SECONDS if driver.hurried else float(arguments[1])

        return 0 if follow(copier, gone, patience, explain) else GAVE_UP


def _own_store(own: OwnFile, folder: Path, facts: StudyInfo) -> MlflowStore | None:
    """The study's own store; None where it has been put aside, as MLflow cannot use it."""
    aside = own.put_aside_if_damaged()
    if aside is None:
        own.make()
        relocate(folder, facts.name)
        try:
            store = MlflowStore(default_uri(folder), facts, folder / ARTIFACTS, _say)
        except Exception:
            aside = own.put_aside_if_other_version()
            if aside is None:
                raise
        else:
            own.opened()
            return store
    _say(f"MLflow cannot use {STORE}: it is now {aside.name}, and made again from the journal")
    return None


def _write_report(folder: Path, file: Path) -> Mapping[str, float]:
    from dashboards.report import write_study

    return write_study(folder, file)


def _say(message: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    print(f"{now} {message}", file=sys.stderr, flush=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only mirror of the folder: one that an earlier driver left behind is sent away."""
    with open(folder / "mlflow.lock", "a+") as file:
        for _ in range(100):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                file.seek(0)
                _send_away(file.read())
                time.sleep(0.2)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def _scratch(folder: Path) -> Iterator[None]:
    """Have temporary files in the study folder, where those of a killed process are found again.

    One that is sent away leaves some as well, should it be told so while it makes them.
    """
    for left in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):  # they are the system's then
        tempfile.tempdir = tempfile.mkdtemp(prefix=_SCRATCH, dir=folder)
    try:
        yield
    finally:
        if tempfile.tempdir is not None:
            shutil.rmtree(tempfile.tempdir, ignore_errors=True)
            tempfile.tempdir = None


def _send_away(pid: str) -> None:
    with suppress(OSError, ValueError):
        if _MODULE.encode() in Path(f"/proc/{int(pid)}/cmdline").read_bytes():
            os.kill(int(pid), signal.SIGTERM)


if __name__ == "__main__":
    sys.stderr = cast(TextIO, Redacted(sys.stderr, os.environ.get("MLFLOW_TRACKING_URI", "")))
    sys.exit(main(sys.argv[1:]))
