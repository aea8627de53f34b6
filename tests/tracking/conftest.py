"""Study folders written as a driver writes them, and the runs that MLflow shows of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import cached_property
from pathlib import Path

import pytest

from autotune.schedules import Constant, Cosine, Linear, Stages
from autotune.storage.journal import Closed, Entry, Journal, Opened
from autotune.tracking.cursor import Cursor
from autotune.tracking.mirror import CURSOR, default_uri, environment
from autotune.tracking.sync import Copier
from autotune.trial import Clock, Ended, Hardware, Report, Reported, Started, State, Suggested

os.environ.update({k: v for k, v in environment().items() if k.startswith(("MLFLOW_", "DO_NOT"))})

HARDWARE = Hardware("cpu", 2, 1.0)
CONFIG = {
    "lr": Stages(edges=(0.1,), parts=(Linear(0.0, 0.4), Cosine(0.4, 0.0))),
    "momentum": Constant(0.9),
    "batch_size": 32,
    "optimizer": {"name": "lars", "betas": [0.9, 0.99]},
}


class StudyFolder:
    """A study folder and the driver's journal in it."""

    def __init__(self, path: Path, name: str = "digits") -> None:
        self.path = path
        path.mkdir(parents=True)
        target = {
            "metric": "acc",
            "value": 0.9,
            "mode": "max",
            "clock": "train",
            "limit": 60.0,
            "confirm": 1,
        }
        facts = {
            "name": name,
            "study_id": "5eed" * 8,
            "target": target,
            "seed": 7,
            "git_commit": "c0ffee",
            "space": {"entries": {}},
            "recipe": None,
            "train": "trainers.digits.train",
        }
        (path / "experiment.json").write_text(json.dumps(facts))

    @cached_property
    def journal(self) -> Journal:
        """Held open, as by a driver."""
        return Journal(self.path)

    def write(self, *entries: Entry) -> None:
        for entry in entries:
            self.journal.write(entry)

    def open(self) -> None:
        self.write(Opened("digits"))

    def close(self, reason: str = "done") -> None:
        self.write(Closed(reason))

    def begin(
        self,
        number: int,
        kind: str = "trial",
        config=CONFIG,
        hardware=HARDWARE,
        point=None,
        of=None,
    ) -> None:
        self.write(Suggested(number, config, point, kind, 100 + number, repeats=of))
        self.write(Started(number, 0.25, hardware))

    def report(self, number: int, steps, **metrics: float) -> None:
        self.write(*(Reported(number, report(s, **metrics)) for s in steps))

    def end(self, number: int, state: State, reason: str, seconds: float, error: str = "") -> None:
        self.write(Ended(number, state, reason, seconds, "detail", error, at=seconds))

    def trial(self, number: int, seconds: float, kind: str = "trial", **begin) -> None:
        """A trial that reached the target."""
        self.begin(number, kind, **begin)
        self.report(number, [0, 100, 200])
        self.end(number, State.REACHED, "target", seconds)

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in (self.path / "journal.jsonl").open()]

    def client(self, uri: str | None = None):
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri or default_uri(self.path))

    def copier(self, said: list[str] | None = None, store: type | None = None, **more) -> Copier:
        """Copies into the folder's own store, in this process."""
        from autotune.tracking.mlflow_store import MlflowStore

        say = (said if said is not None else []).append
        uri, artifacts = default_uri(self.path), self.path / "artifacts"
        cursor = Cursor(self.path / CURSOR, "default")
        make = store or MlflowStore
        return Copier(
            self.path, lambda facts: make(uri, facts, artifacts, say), cursor, say, **more
        )

    def history(self, run, key: str, uri: str | None = None) -> list[tuple[int, float]]:
        points = self.client(uri).get_metric_history(run.info.run_id, key)
        return sorted((p.step, p.value) for p in points)

    def artifact(self, run, name: str) -> str:
        return (self.path / "artifacts" / run.info.run_id / "artifacts" / name).read_text()

    @staticmethod
    def ids(runs) -> dict[str, str]:
        return {name: run.info.run_id for name, run in runs.items()}

    @staticmethod
    def milliseconds(line: dict) -> int:
        return round(datetime.fromisoformat(line["time"]).timestamp() * 1000)

    def runs(self, uri: str | None = None, view: int = 1) -> dict[str, object]:
        """The runs by name; the study's own is `digits`. `view=1`: not the deleted ones."""
        client = self.client(uri)
        experiment = client.get_experiment_by_name("digits")
        if experiment is None:
            return {}
        found = client.search_runs([experiment.experiment_id], run_view_type=view)
        runs = {run.info.run_name: run for run in found}
        assert len(runs) == len(found), "two runs of one trial"
        return runs


def report(step: int, **metrics: float) -> Report:
    """100 samples a second; every 100 samples cost 0.1 s of evaluation."""
    train = step / 100
    clock = Clock(setup=2.0, data=train / 4, train=train * 3 / 4, eval=step / 1000)
    return Report(step, train, {"acc": step / 1000, **metrics}, clock)


@pytest.fixture(scope="session")
def new_study(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Path
) -> Iterator[Callable[[], StudyFolder]]:
    """Makes study folders that have been opened and whose store is ready."""

    journals = ExitStack()

    def make() -> StudyFolder:
        folder = StudyFolder(tmp_path_factory.mktemp("a") / "study")
        shutil.copy(empty_store, folder.path / "mlflow.db")
        journals.enter_context(folder.journal)
        folder.open()
        return folder

    with journals:
        yield make


@pytest.fixture
def study(new_study: Callable[[], StudyFolder]) -> StudyFolder:
    return new_study()


@pytest.fixture
def processes():
    """Processes to be killed at the test's end, with their children."""
    started: list[subprocess.Popen] = []
    yield started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()
