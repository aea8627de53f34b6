"""Studies against real services: MLflow with a password, on a PostgreSQL that is restarted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import services
from sims import METRIC, racing, simulate

from autotune.storage import journal
from autotune.tracking.mirror import CURSOR, environment
from autotune.trial import State

pytestmark = [
    pytest.mark.skipif(bool(services.missing()), reason=services.missing() or "-"),
    pytest.mark.slow,
]
WAIT_SECONDS = 1500.0


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[services.Postgres, services.Tracking]]:
    with services.services() as started:
        yield started


@pytest.fixture
def postgres(running: Any) -> services.Postgres:
    return running[0]


@pytest.fixture
def tracking(running: Any, monkeypatch: pytest.MonkeyPatch) -> services.Tracking:
    """The server; this process knows the password, from where MLflow reads it."""
    for name, value in {**environment(), **running[1].credentials}.items():
        if name.startswith("MLFLOW_"):
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return running[1]


def study(name: str, folder: Path, uri: str, trials: int = 6, watch: Any = None) -> Any:
    """Few trials are quick: the server looks at the password for each request, which takes long."""
    experiment = replace(racing([1.0, 2.0, 4.0, 0.5]), name=name)
    return simulate(experiment, folder, trials, workers=2, tracking_uri=uri, watch=watch)


def finished(uri: str, name: str) -> dict[int, Any]:
    """The trials' runs, once the study's own run has ended."""
    from mlflow import MlflowClient

    client, end = MlflowClient(uri), time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        experiment = client.get_experiment_by_name(name)
        runs = client.search_runs([experiment.experiment_id]) if experiment else []
        if any(
            r.data.tags["autotune.kind"] == "study" and r.info.status == "FINISHED" for r in runs
        ):
            trials = [r for r in runs if r.data.tags["autotune.kind"] != "study"]
            numbers = [int(r.data.tags["autotune.trial"]) for r in trials]
            assert len(set(numbers)) == len(numbers), "one run a trial"
            return dict(zip(numbers, trials, strict=True))
        time.sleep(0.5)
    raise AssertionError(f"the view of {name} does not catch up")


def agrees(result: Any, uri: str, name: str) -> None:
    """That MLflow has the journal's numbers, every point once."""
    from mlflow import MlflowClient

    runs, client = finished(uri, name), MlflowClient(uri)
    assert sorted(runs) == [t.number for t in result.trials]
    for trial in result.trials:
        run = runs[trial.number]
        history = client.get_metric_history(run.info.run_id, METRIC)
        points = [(p.step, p.value) for p in history]
        assert sorted(points) == sorted((r.step, r.metrics[METRIC]) for r in trial.reports)
        assert run.data.tags["autotune.state"] == str(trial.state)
        if trial.state is State.REACHED:
            assert run.data.metrics["time_to_target_seconds"] == trial.seconds


def within(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.soak
def test_three_studies_at_once(tracking: services.Tracking, tmp_path: Path) -> None:
    names = ["first", "second", "third"]
    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda n: study(n, tmp_path / n, tracking.uri), names))
    for name, result in zip(names, results, strict=True):
        agrees(result, tracking.uri, name)
        assert tracking.password.encode() not in within(tmp_path / name)
        assert json.loads((tmp_path / name / "experiment.json").read_text())["tracking_uri"] == (
            tracking.uri
        )


def test_postgresql_is_restarted_during_a_study(
    tracking: services.Tracking, postgres: services.Postgres, tmp_path: Path
) -> None:
    """It is down for a while in which the study goes on; then the view has every number."""
    folder = tmp_path / "study"
    lines: list[int] = []

    def watch(event: Any, trials: Any) -> None:
        lines.append(len(journal.read(folder)))
        if len(lines) == 8:
            until(lambda: '"0":' in (folder / CURSOR).read_text())
            postgres.stop()
        if len(lines) == 24:
            until(lambda: "behind" in json.loads((folder / CURSOR).read_text()))
            postgres.start()

    result = study("outage", folder, tracking.uri, 4, watch)
    assert lines[7] < lines[23] < lines[-1], "the study went on meanwhile, and after that"
    agrees(result, tracking.uri, "outage")


def test_a_wrong_password_costs_the_view_only(
    tracking: services.Tracking,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    wrong = "not-the-Pa55word"
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", wrong)
    mirror_waits(monkeypatch, 2.0)
    result = study("refused", tmp_path / "refused", tracking.uri, 2)
    assert result.best is not None
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1
    assert "MLflow is behind" in printed
    until(lambda: "behind" in json.loads((tmp_path / "refused" / "mlflow.json").read_text()))
    behind = json.loads((tmp_path / "refused" / "mlflow.json").read_text())["behind"]
    assert "not authenticated" in behind
    assert wrong.encode() not in within(tmp_path / "refused") + printed.encode()
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", tracking.password)
    from autotune.tracking.mirror import catch_up

    assert catch_up(tmp_path / "refused", tracking.uri, WAIT_SECONDS)
    agrees(result, tracking.uri, "refused")


def mirror_waits(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    from autotune.tracking import mirror

    monkeypatch.setattr(mirror, "_WAIT_SECONDS", seconds)


def until(ready: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        try:
            if found := ready():
                return found
        except (OSError, ValueError):
            pass
        time.sleep(0.2)
    raise AssertionError("waited in vain")
