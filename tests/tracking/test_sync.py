"""The view after trouble: interrupted studies, lost attempts, crashes, runs that are gone."""

from __future__ import annotations

import base64
import json
import math
import time
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INTERNAL_ERROR,
    REQUEST_LIMIT_EXCEEDED,
    TEMPORARILY_UNAVAILABLE,
)
from requests import HTTPError

from autotune.tracking import shared_view
from autotune.tracking.cursor import Cursor
from autotune.tracking.follow import follow
from autotune.tracking.mirror import CURSOR
from autotune.tracking.mlflow_store import MlflowStore
from autotune.trial import Checkpoint, Clock, Hardware, Interrupted, Reported, Saved, Started, State

from .conftest import HARDWARE, report


def test_a_running_study_is_running(study) -> None:
    study.begin(0)
    study.report(0, [0, 100])
    copy = study.copier()
    copy.catch_up(over=False)
    runs = study.runs()
    assert {r.info.status for r in runs.values()} == {"RUNNING"}
    assert runs["trial-0000"].data.tags["autotune.state"] == "RUNNING"
    study.report(0, [200])
    copy.catch_up(over=False)
    assert len(study.history(runs["trial-0000"], "acc")) == 3
    assert {a.path for a in study.client().list_artifacts(runs["trial-0000"].info.run_id)} == set()


def test_a_lost_attempt_is_not_shown_twice(study) -> None:
    study.begin(0)
    study.report(0, [0, 100, 200])
    study.write(Saved(0, Checkpoint(100, "c", Clock(train=1.0))), Interrupted(0, "worker died"))
    study.write(Started(0, 0.5, Hardware("cpu")))
    study.report(0, [200, 300])
    study.copier().catch_up(over=False)
    run = study.runs()["trial-0000"]
    assert [step for step, _ in study.history(run, "acc")] == [0, 100, 200, 300]
    assert study.history(run, "samples_per_second")[-1] == (300, 100.0)
    assert run.data.tags["autotune.attempts"] == "2"


def test_what_is_measured_again_after_a_loss_hides_what_was_lost(study) -> None:
    """A curve is that of the attempt that counts; equal values are not written twice."""
    study.begin(0)
    study.write(Reported(0, report(100, seen=1.0)), Reported(0, report(200, seen=2.0)))
    study.copier().catch_up(over=False)
    time.sleep(0.01)  # MLflow's times are milliseconds
    study.write(Interrupted(0, "worker died"), Started(0, 0.0, HARDWARE))
    slower = replace(report(100, seen=1.0), clock=Clock(train=3.0), seconds=3.0)
    study.write(Reported(0, slower), Reported(0, report(200, seen=2.5)))
    study.end(0, State.REACHED, "target", 4.0)
    study.copier().catch_up(over=False)
    run = study.runs()["trial-0000"]

    def curve(key: str) -> list[tuple[int, float]]:
        found = study.client().get_metric_history(run.info.run_id, key)
        return [(p.step, p.value) for p in sorted(found, key=lambda p: (p.step, p.timestamp))]

    assert curve("train_seconds") == [(100, 1.0), (100, 3.0), (200, 2.0)]
    assert curve("seen") == [(100, 1.0), (200, 2.0), (200, 2.5)]
    assert run.data.metrics["seen"] == 2.5


@pytest.mark.parametrize("ended", [False, True], ids=["driver killed", "driver interrupted"])
def test_interrupted_and_taken_up_again(study, ended: bool) -> None:
    study.begin(0)
    study.report(0, [0, 100])
    if ended:
        study.end(0, State.CENSORED, "interrupted", 1.0)
        study.close("interrupted")
    study.copier().catch_up(over=True)
    before = study.runs()
    assert {r.info.status for r in before.values()} == {"KILLED"}
    assert {r.data.tags["autotune.reason"] for r in before.values()} == {"interrupted"}
    assert "censored_at_seconds" not in before["trial-0000"].data.metrics
    last = study.milliseconds(study.lines()[-1])
    assert before["digits"].info.end_time == last

    study.open()
    study.write(Interrupted(0, "driver restarted", broke=False), Started(0, 0.0, Hardware("cpu")))
    copy = study.copier()
    copy.catch_up(over=False)
    assert {r.info.status for r in study.runs().values()} == {"RUNNING"}
    study.report(0, [0, 100, 200])
    study.end(0, State.REACHED, "target", 2.0)
    study.close()
    copy.catch_up(over=True)
    after = study.runs()
    assert study.ids(after) == study.ids(before)
    assert {r.info.status for r in after.values()} == {"FINISHED"}
    assert after["trial-0000"].data.tags["autotune.state"] == "REACHED"
    assert after["trial-0000"].data.metrics["time_to_target_seconds"] == 2.0
    assert [step for step, _ in study.history(after["trial-0000"], "acc")] == [0, 100, 200]


def test_a_baseline_that_the_time_limit_cut_off_is_not_censored_yet(study) -> None:
    study.begin(0, kind="baseline")
    study.report(0, [0, 100, 200])
    study.end(0, State.CENSORED, "budget", 2.0)
    study.close("budget")
    study.copier().catch_up(over=True)
    (run,) = [run for name, run in study.runs().items() if name == "baseline"]
    assert (run.info.status, run.data.tags["autotune.reason"]) == ("KILLED", "budget")
    assert "censored_at_seconds" not in run.data.metrics
    study.write(Interrupted(0, "driver restarted", broke=False), Started(0, 0.0, Hardware("cpu")))
    study.end(0, State.REACHED, "target", 3.0)
    study.copier().catch_up(over=True)
    (run,) = [run for name, run in study.runs().items() if name == "baseline"]
    assert (run.info.status, run.data.metrics["time_to_target_seconds"]) == ("FINISHED", 3.0)


def test_an_end_that_no_longer_holds_is_hidden(study) -> None:
    study.begin(0)
    study.report(0, [0, 100])
    study.end(0, State.CENSORED, "budget", 1.0)
    study.copier().catch_up(over=True)
    study.write(Interrupted(0, "driver restarted", broke=False), Started(0, 0.0, Hardware("cpu")))
    study.end(0, State.REACHED, "target", 2.0)
    study.copier().catch_up(over=True)
    metrics = study.runs()["trial-0000"].data.metrics
    assert math.isnan(metrics["censored_at_seconds"])
    assert metrics["time_to_target_seconds"] == 2.0


def test_writing_again_changes_nothing(study) -> None:
    study.trial(0, 2.0, kind="baseline")
    study.trial(1, 1.0)
    study.close()
    study.copier().catch_up(over=True)
    shown = study.runs()
    before = study.history(shown["baseline"], "acc")
    (study.path / CURSOR).unlink()
    study.copier().catch_up(over=True)
    after = study.runs()
    assert study.history(after["baseline"], "acc") == before
    for name, run in shown.items():
        assert after[name].info.run_id == run.info.run_id
        assert after[name].data.to_dictionary() == run.data.to_dictionary()


class Torn(MlflowStore):
    """A store that breaks off right after it made the second trial's run."""

    def create(self, number: int, shown) -> None:
        super().create(number, shown)
        if number == 1:
            raise ConnectionError("broke off")


def test_a_crash_after_making_a_run_makes_no_second_one(study) -> None:
    study.trial(0, 1.0)
    study.trial(1, 2.0)
    with pytest.raises(ConnectionError):
        study.copier(store=Torn).catch_up(over=False)
    study.copier().catch_up(over=True)
    runs = study.runs(view=3)  # which asserts that there is one run a name, deleted ones included
    assert len(runs) == 3
    assert study.history(runs["trial-0001"], "acc") == [(0, 0.0), (100, 0.1), (200, 0.2)]


def test_runs_that_were_doubled_or_deleted(study) -> None:
    study.trial(0, 1.0)
    study.trial(1, 2.0)
    study.copier().catch_up(over=False)
    client, before = study.client(), study.runs()
    twin = before["trial-0000"]
    client.create_run(twin.info.experiment_id, tags=twin.data.tags, run_name="trial-0000")
    client.delete_run(before["trial-0001"].info.run_id)
    study.close()
    study.copier().catch_up(over=True)
    after = study.runs()
    assert study.ids(after) == study.ids(before)


def test_a_run_that_the_store_has_lost_for_good_is_written_again(study) -> None:
    study.trial(0, 1.0)
    study.trial(1, 2.0)
    study.copier().catch_up(over=False)
    before = study.runs()
    lost = before["trial-0001"].info.run_id
    study.client()._tracking_client.store._hard_delete_run(lost)  # as `mlflow gc` does
    study.close()
    said: list[str] = []
    study.copier(said).catch_up(over=True)
    after = study.runs()
    assert after["trial-0000"].info.run_id == before["trial-0000"].info.run_id
    assert after["trial-0001"].info.run_id != lost
    for name in ("trial-0000", "trial-0001"):
        assert study.history(after[name], "acc") == [(0, 0.0), (100, 0.1), (200, 0.2)]
    assert said == ["1 runs are missing: the store is written from the start"]


def test_a_deleted_experiment_is_restored(study) -> None:
    study.copier().catch_up(over=False)
    study.client().delete_experiment(study.runs()["digits"].info.experiment_id)
    study.trial(0, 1.0)
    study.close()
    study.copier().catch_up(over=True)
    assert sorted(study.runs()) == ["digits", "trial-0000"]


def test_a_torn_last_line_waits_and_a_damaged_line_does_not(study) -> None:
    study.trial(0, 1.0)
    journal = study.path / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"event":"sugg')
    study.copier().catch_up(over=False)
    journal.write_bytes(whole + b"\0\0\0\n")
    study.copier().catch_up(over=True)
    assert study.runs()["digits"].info.status == "KILLED"
    journal.write_bytes(whole + b"\0\0\0\n" + whole.splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match=r"journal.jsonl, line 8 is damaged"):
        study.copier().catch_up(over=True)


def test_the_report_is_shown_and_kept_up_to_date(study, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def write(folder, file) -> dict[str, float]:
        made.append(len(study.lines()))
        file.write_text(f"<html>{made[-1]}</html>")
        return {"confirmed_speedup_low": float(made[-1])}

    study.trial(0, 2.0)
    copy = study.copier(report=write)
    copy.catch_up(over=False)
    run = study.runs()["digits"]
    assert study.artifact(run, "report.html") == (study.path / "report.html").read_text()
    first = made[-1]
    study.trial(1, 1.0)
    copy.catch_up(over=False)
    assert made == [first], "not again within half a minute"
    monkeypatch.setattr("autotune.tracking.sync._REPORT_SECONDS", 0.0)
    copy._next_report = 0.0
    copy.catch_up(over=False)
    copy.catch_up(over=False)
    assert made == [first, len(study.lines())], "nor without news"
    study.trial(2, 3.0)
    study.close()
    copy._next_report = math.inf
    copy.catch_up(over=True)
    run = study.runs()["digits"]
    assert study.artifact(run, "report.html") == f"<html>{len(study.lines())}</html>"
    assert run.data.metrics["confirmed_speedup_low"] == len(study.lines())


def test_a_report_that_cannot_be_made_is_logged_and_costs_nothing_else(study) -> None:
    def write(folder, file) -> dict[str, float]:
        raise RuntimeError("no plotly")

    said: list[str] = []
    study.trial(0, 2.0)
    study.close()
    study.copier(said, report=write).catch_up(over=True)
    assert said == ["report.html cannot be made: RuntimeError('no plotly')"]
    assert study.runs()["digits"].info.status == "FINISHED"


class Picky(MlflowStore):
    """A store that takes nothing of trial 1 but its run, or nothing at all where it is `full`."""

    full = False

    def log(self, number: int, points, shown) -> None:
        if number == 1 or self.full:
            raise ValueError("no")
        super().log(number, points, shown)

    def check(self, number: int) -> None:
        if self.full:
            raise ValueError("the disk is full")
        super().check(number)


def test_what_a_store_refuses_of_one_run_is_left_out_and_said_once(study) -> None:
    said: list[str] = []
    copy = study.copier(said, store=Picky)
    for number in range(2):
        study.trial(number, 1.0)
    copy.catch_up(over=False)
    study.begin(2)
    study.report(2, [0, 100])
    study.end(2, State.FAILED, "ValueError", 2.0, "boom")
    study.write(Interrupted(1, "driver restarted", broke=False), Started(1, 0.0, HARDWARE))
    study.report(1, [300])
    study.end(1, State.REACHED, "target", 2.0)
    study.close()
    copy.catch_up(over=True)
    assert said == ["trial 1: MLflow does not show all of it: ValueError('no')"]
    runs = study.runs()
    ended = {"trial-0000": "FINISHED", "trial-0001": "FINISHED", "trial-0002": "FAILED"}
    assert {n: r.info.status for n, r in runs.items()} == {"digits": "FINISHED", **ended}
    assert study.history(runs["trial-0001"], "acc") == []
    assert study.history(runs["trial-0002"], "acc") == [(0, 0.0), (100, 0.1)]
    assert study.artifact(runs["trial-0002"], "error.txt") == "boom"


def test_a_fault_of_the_store_itself_costs_no_run_anything(study) -> None:
    class Full(Picky):
        full = True

    study.trial(0, 1.0)
    with pytest.raises(ValueError, match="the disk is full"):
        study.copier(store=Full).catch_up(over=False)
    study.close()
    study.copier().catch_up(over=True)
    assert len(study.history(study.runs()["trial-0000"], "acc")) == 3


def followed(study, store: type[MlflowStore], **more) -> list[str]:
    """What is said until an ended study is shown, without waiting, in at most 40 passes."""
    said: list[str] = []
    passes = iter(range(40))

    def gone(seconds: float) -> bool:
        assert next(passes, None) is not None, said
        return True

    assert follow(study.copier(said, store=store, **more), gone, lambda: 600.0, str)
    return said


def blocked(study) -> type[MlflowStore]:
    """There is a file where the folder of trial 1's artifacts should be."""
    place = study.path / "artifacts" / study.runs()["trial-0001"].info.run_id
    place.parent.mkdir(exist_ok=True)
    place.touch()
    return MlflowStore


def too_large(name: str) -> type[MlflowStore]:
    """A proxy before the store refuses this file for its size."""

    class Proxied(MlflowStore):
        def upload(self, number: int, folder: Path) -> None:
            if (folder / name).exists():
                raise HTTPError("413 Client Error: Request Entity Too Large")
            super().upload(number, folder)

    return Proxied


@pytest.mark.parametrize(
    ("fault", "whose"),
    [
        (blocked, "trial 1"),
        (lambda _: too_large("journal.jsonl"), "the study"),
        (lambda _: too_large("report.html"), "the study"),
    ],
    ids=["folder", "journal", "report"],
)
def test_files_of_one_run_that_cannot_be_sent_stop_nothing(study, fault, whose: str) -> None:
    def write(folder: Path, file: Path) -> dict[str, float]:
        file.write_text("<html>")
        return {}

    for number in range(2):
        study.begin(number, config={"lr": 0.1})
    study.copier().catch_up(over=False)
    store = fault(study)
    for number in range(2):
        study.end(number, State.FAILED, "ValueError", 2.0, "boom")
    study.close()
    said = followed(study, store, report=write)
    assert [s.split(":")[0] for s in said if "does not show all of it" in s] == [whose]
    runs = study.runs()
    assert runs["digits"].info.status == "FINISHED"
    assert {runs[f"trial-000{n}"].info.status for n in range(2)} == {"FAILED"}
    assert study.artifact(runs["trial-0000"], "error.txt") == "boom"


def failing(error: MlflowException, times: int) -> type[MlflowStore]:
    """A store that fails so often where it should take a point of `bad` in a batch."""
    left = iter(range(times))

    class Client:
        def __init__(self, inner) -> None:
            self._inner = inner

        def __getattr__(self, name: str):
            return getattr(self._inner, name)

        def log_batch(self, run: str, metrics=(), **more) -> None:
            if any(m.key == "bad" for m in metrics) and next(left, None) is not None:
                raise error
            self._inner.log_batch(run, metrics=metrics, **more)

    class Failing(MlflowStore):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            self._client = Client(self._client)

    return Failing


@pytest.mark.parametrize(
    ("code", "times", "shown"),
    [
        (REQUEST_LIMIT_EXCEEDED, 30, [1.0, 2.0]),
        (TEMPORARILY_UNAVAILABLE, 5, [1.0, 2.0]),
        (INTERNAL_ERROR, 15, [1.0, 2.0]),
        (INTERNAL_ERROR, 10**9, []),
    ],
)
def test_a_store_that_fails_for_a_while_loses_no_point(study, code, times: int, shown) -> None:
    """One that takes everything else, and never this, leaves out no more than this."""
    study.begin(0, config={"lr": 0.1})
    study.report(0, [100], bad=1.0)
    study.report(0, [200], bad=2.0)
    study.end(0, State.REACHED, "target", 2.0)
    study.close()
    said = followed(study, failing(MlflowException("try again", code), times))
    run = study.runs()["trial-0000"]
    assert [value for _, value in study.history(run, "bad")] == shown
    assert [value for _, value in study.history(run, "acc")] == [0.1, 0.2]
    assert ("caught up" in said, run.info.status) == (True, "FINISHED")
    assert any("does not show all of it" in line for line in said) == (not shown)


def test_a_run_whose_tags_somebody_removed_is_made_again(study) -> None:
    study.trial(0, 1.0)
    study.trial(1, 2.0)
    study.copier().catch_up(over=False)
    client, before = study.client(), study.runs()
    client.delete_tag(before["trial-0001"].info.run_id, "autotune.trial")
    study.trial(2, 2.0)
    study.close()
    study.copier().catch_up(over=True)
    experiment = before["digits"].info.experiment_id
    found = client.search_runs([experiment], "tags.`autotune.kind` = 'trial'")
    names = [run.info.run_name for run in found]
    assert sorted(names) == ["trial-0000", "trial-0001", "trial-0001", "trial-0002"]


@pytest.mark.parametrize(
    "entry", [5, {"lines": "many", "runs": {}}, {"lines": 3, "runs": {"x": "y"}}, {"lines": 3}]
)
def test_a_position_that_cannot_be_read_is_the_start(tmp_path: Path, entry: object) -> None:
    file, other = tmp_path / CURSOR, {"view": 2, "lines": 2, "runs": {}}
    file.write_text(json.dumps({"stores": {"own": entry, "other": other}}))
    own = Cursor(file, "own")
    assert (own.lines, own.runs) == (0, {})
    own.save()
    assert Cursor(file, "other").lines == 2


def test_the_runs_of_an_older_view_are_renamed_and_filled_up(new_study) -> None:
    study = new_study()
    study.trial(0, 3.0, kind="baseline")
    study.trial(1, 2.0, point={"lr.peak": 0.4})
    study.copier().catch_up(over=False)
    client, before = study.client(), study.runs()
    for name, number in (("baseline", 0), ("trial-0001", 1)):
        client.update_run(before[name].info.run_id, name=f"trial-{number:04d}")
    place = study.path / CURSOR
    cursor = json.loads(place.read_text())
    del cursor["stores"]["default"]["view"]
    place.write_text(json.dumps(cursor))
    study.close()
    study.copier().catch_up(over=True)
    after = study.runs()
    assert study.ids(after) == study.ids(before), "the same runs, with the names of now"
    assert after["trial-0001"].data.params["lr.peak"] == "0.4"
    assert study.history(after["trial-0001"], "acc") == study.history(before["trial-0001"], "acc")


def test_the_experiment_has_the_view_of_the_leaderboard(new_study) -> None:
    study = new_study()
    study.trial(0, 3.0, kind="baseline")
    for number, rate in ((1, 0.4), (2, 0.2)):
        study.trial(number, 2.0, point={"lr.peak": rate, "lr.family": "cosine", "other": rate})
    study.copier().catch_up(over=False)
    tags = study.client().get_experiment_by_name("digits").tags
    view = tags[shared_view.tag_name("5eed" * 8)].removeprefix("deflate;")
    state = json.loads(zlib.decompress(base64.b64decode(view)))
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`time_to_target_seconds`", True)
    assert state["selectedColumns"] == [
        "tags.`autotune.state`",
        "metrics.`time_to_target_seconds`",
        "metrics.`confirmed_mean_seconds`",
        "params.`lr.peak`",
        "params.`batch_size`",
    ]
    charts = {chart["type"]: chart for chart in state["compareRunCharts"]}
    line = charts["LINE"]["metricKey"], charts["LINE"]["selectedXAxisMetricKey"]
    assert line == ("acc", "train_seconds")
    assert charts["SCATTER"]["xaxis"] == {"key": "lr.peak", "type": "PARAM"}
    assert charts["PARALLEL"]["selectedParams"] == ["lr.peak", "other"], "those that differ"
    assert charts["CONTOUR"]["yaxis"]["key"] == "other"
