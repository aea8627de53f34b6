"""MLflow as a store of runs, and the process that writes it: `python -m autotune.trackers.mlflow`.

A `Mirror` starts the process. It follows the journal of a study folder until its standard input
ends, which says that no driver runs the study any more; then it writes what is missing, ends the
runs and leaves with 0. The tracking URI comes in the environment, because it may hold a password.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, cast

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from autotune.errors import UserError, unknown
from autotune.trackers.copier import Copier, Cursor, Say, follow
from autotune.trackers.mirror import (
    CURSOR,
    GAVE_UP,
    SENT_AWAY,
    STORE,
    check_uri,
    default_uri,
    label,
    redact,
)
from autotune.trackers.view import STUDY, Facts, Point, Shown

_BATCH = {"metrics": 800, "params": 100, "tags": 100}  # MLflow takes 1000 things, 100 texts each
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
_HURRIED_SECONDS = 120.0  # for what is missing when a job was cancelled
_MODULE = "autotune.trackers.mlflow"
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # its UI shows runs, not chats


class MlflowStore:
    """The runs of one study in an MLflow tracking store. Raises whatever MLflow raises.

    Points that are there already are not added twice: the SQL stores know them by their time.
    """

    def __init__(self, uri: str, facts: Facts, artifacts: Path | None, say: Say) -> None:
        self.runs: dict[int, str] = {}
        self._client = MlflowClient(tracking_uri=uri)
        self._facts = facts
        self._say = say
        found = self._client.get_experiment_by_name(facts.name)
        if found is None:
            place = artifacts.as_uri() if artifacts is not None else None
            self._experiment = self._client.create_experiment(
                facts.name, artifact_location=place, tags=_KIND
            )
        else:
            self._experiment = found.experiment_id
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(self._experiment)

    def find_runs(self, known: Mapping[int, str]) -> None:
        found: dict[int, list[Run]] = {}
        for run in self._search():
            tags = run.data.tags
            number = STUDY if tags["autotune.kind"] == "study" else int(tags["autotune.trial"])
            found.setdefault(number, []).append(run)
        for number, runs in found.items():
            runs.sort(key=lambda r: (r.info.run_id != known.get(number), _deleted(r)))
            kept, *spare = runs
            self.runs[number] = kept.info.run_id
            if _deleted(kept):
                self._client.restore_run(kept.info.run_id)
            for run in [r for r in spare if not _deleted(r)]:
                self._client.delete_run(run.info.run_id)

    def _search(self) -> Iterator[Run]:
        wanted = f"tags.`autotune.study_id` = '{self._facts.study_id}'"
        token: str | None = None
        while token != "":
            page = self._client.search_runs(
                [self._experiment], wanted, ViewType.ALL, page_token=token
            )
            yield from page
            token = page.token or ""

    def create(self, number: int, shown: Shown) -> None:
        tags = dict(shown.tags)
        if number != STUDY:
            tags["mlflow.parentRunId"] = self.runs[STUDY]
        if commit := self._facts.others.get("git_commit"):
            tags["mlflow.source.git.commit"] = commit
        run = self._client.create_run(self._experiment, shown.start_ms, tags, shown.name)
        self.runs[number] = run.info.run_id

    def log(self, number: int, points: Sequence[Point], shown: Shown) -> None:
        rest: dict[str, list[Any]] = {
            "metrics": [Metric(p.key, p.value, p.time_ms, p.step) for p in points],
            "params": [Param(k, v) for k, v in shown.params.items()],
            "tags": [RunTag(k, v) for k, v in shown.tags.items()],
        }
        while any(rest.values()):
            self._log_batch(self.runs[number], {k: v[: _BATCH[k]] for k, v in rest.items()})
            rest = {k: v[_BATCH[k] :] for k, v in rest.items()}

    def _log_batch(self, run: str, batch: Mapping[str, list[Any]]) -> None:
        """Send a batch; what MLflow refuses is told and left out, alone."""
        try:
            self._client.log_batch(run, **batch)
        except MlflowException as error:
            if error.error_code not in _REFUSED or _deleted(self._client.get_run(run)):
                raise
            things = [(kind, thing) for kind, many in batch.items() for thing in many]
            if len(things) == 1:
                self._say(f"MLflow refused {things[0][1].key!r:.80}: {error!s:.200}")
                return
            for kind, thing in things:
                self._log_batch(run, {kind: [thing]})

    def upload(self, number: int, folder: Path) -> None:
        self._client.log_artifacts(self.runs[number], str(folder))

    def remove(self, number: int, names: Iterable[str]) -> None:
        place = self._client.get_run(self.runs[number]).info.artifact_uri
        kept = get_artifact_repository(place, tracking_uri=self._client.tracking_uri)
        for name in names:
            with suppress(Exception):  # a store that cannot remove keeps more than it must
                kept.delete_artifacts(name)

    def held(self, number: int, folder: str) -> list[str]:
        found = self._client.list_artifacts(self.runs[number], folder)
        inner = (self.held(number, a.path) if a.is_dir else [a.path] for a in found)
        return [name for names in inner for name in names]

    def tag(self, number: int, tags: Mapping[str, str]) -> None:
        self._client.log_batch(self.runs[number], tags=[RunTag(k, v) for k, v in tags.items()])

    def set_status(self, number: int, shown: Shown) -> None:
        if shown.status == "RUNNING":
            self._client.update_run(self.runs[number], shown.status)
        else:
            self._client.set_terminated(self.runs[number], shown.status, shown.end_ms)


class Reader:
    """The runs of one experiment of a tracking store, to be read and not changed.

    Raises:
        UserError: no such store, experiment or run (the nearest right name), or no answer.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        check_uri(uri)
        file = uri.partition(":///")[2].partition("?")[0]
        if uri.startswith("sqlite") and not Path(file).is_file():
            raise UserError(f"there is no MLflow store in {file}: name one with --tracking-uri")
        self._uri = uri
        self._client = MlflowClient(tracking_uri=uri)
        with self._told():
            found = self._client.get_experiment_by_name(experiment)
            if found is None:
                names = [e.name for e in self._client.search_experiments()]
                raise UserError(unknown("MLflow experiment", experiment, names))
        self._experiment = found

    def find(self, name: str) -> Run:
        """The run with this name or id; the newest if several have the name."""
        with self._told():
            own = [self._experiment.experiment_id]
            runs = list(self._client.search_runs(own, max_results=5000))
        named = [r for r in runs if name in (r.info.run_name, r.info.run_id)]
        if not named:
            names = [r.info.run_name or r.info.run_id for r in runs]
            raise UserError(f"{self._experiment.name}: {unknown('MLflow run', name, names)}")
        return max(named, key=lambda r: int(r.info.start_time or 0))

    def fetch(self, run_id: str, names: Sequence[str], folder: Path) -> bool:
        """Copy these artifacts of the run into `folder`; whether it has them all."""
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        with self._told():
            held = {a.path for a in self._client.list_artifacts(run_id)}
            for name in names if held.issuperset(names) else ():
                self._client.download_artifacts(run_id, name, str(folder))
        return held.issuperset(names)

    def history(self, run_id: str, metric: str) -> list[tuple[int, int, float]]:
        """All (step, milliseconds since 1970, value) of the metric, in the order of time."""
        with self._told():
            found = self._client.get_metric_history(run_id, metric)
        return sorted((m.step, m.timestamp, m.value) for m in found)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What MLflow raises as one line without secrets."""
        try:
            yield
        except (MlflowException, OSError) as error:
            line = " ".join(f"{label(self._uri)}: {_root(error)}".split())
            raise UserError(redact(line, self._uri)[:300]) from None


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
            sys.exit(SENT_AWAY)
        self.hurried = True


class OwnFile:
    """The study folder's own store, which may be removed while it is in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0

    def make(self) -> None:
        """Make the store, if there is none, as a whole or not at all.

        MLflow makes its tables one after another, and cannot go on where it was killed.
        """
        if self._path.exists():
            return
        beside = self._path.with_name(f"{self._path.name}.new")
        for left in self._path.parent.glob(f"{beside.name}*"):
            left.unlink()
        MlflowClient(f"sqlite:///{beside}").search_experiments(max_results=1)
        beside.replace(self._path)

    def opened(self) -> None:
        self._inode = self._path.stat().st_ino

    def replaced(self) -> bool:
        """Whether the file that was opened is no longer there."""
        try:
            now = self._path.stat()
        except OSError:
            return self._inode != 0
        return self._inode not in (0, now.st_ino)


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
    own = OwnFile(folder / STORE) if uri == default_uri(folder) else None
    driver = Driver()
    signal.signal(signal.SIGTERM, driver.outlive)

    def connect(facts: Facts) -> MlflowStore:
        if own is not None:
            own.make()
        store = MlflowStore(uri, facts, (folder / "artifacts") if own else None, _say)
        if own is not None:
            own.opened()
        return store

    def gone(seconds: float) -> bool:
        is_gone = driver.gone(seconds)
        if own is not None and own.replaced():
            # MLflow keeps the removed file open for as long as this process lives.
            os.execv(sys.executable, [sys.executable, "-m", _MODULE, *arguments])  # noqa: S606
        return is_gone

    def explain(error: Exception) -> str:
        cause = _root(error)
        return redact(" ".join(f"{label(uri)}: {type(cause).__name__}: {cause}".split()), uri)[:300]

    with _alone(folder):
        cursor = Cursor(folder / CURSOR, "default" if own else label(uri))
        copier = Copier(folder, connect, cursor, _say, _write_report)

        def patience() -> float:
            return _HURRIED_SECONDS if driver.hurried else float(arguments[1])

        return 0 if follow(copier, gone, patience, explain) else GAVE_UP


def _write_report(folder: Path, file: Path) -> Mapping[str, float]:
    from dashboards.report import write_study

    return write_study(folder, file)


def _root(error: BaseException) -> BaseException:
    """The system's error at the root, if there is one: it is shorter and says more."""
    root = error
    while (below := root.__cause__ or root.__context__) is not None:
        root = below
    return root if isinstance(root, OSError) else error


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


def _send_away(pid: str) -> None:
    with suppress(OSError, ValueError):
        if _MODULE.encode() in Path(f"/proc/{int(pid)}/cmdline").read_bytes():
            os.kill(int(pid), signal.SIGTERM)


def _deleted(run: Run) -> bool:
    return bool(run.info.lifecycle_stage == "deleted")


if __name__ == "__main__":
    sys.stderr = cast(TextIO, Redacted(sys.stderr, os.environ.get("MLFLOW_TRACKING_URI", "")))
    sys.exit(main(sys.argv[1:]))
