"""Runs in MLflow as candidates of a comparison: studies, trials, and other people's runs."""

from __future__ import annotations

import re

import pytest

from autotune.errors import UserError
from autotune.evaluation.comparison import ComparedTarget, compare, sources
from autotune.tracking.mirror import default_uri
from autotune.trial import State

AIM = ComparedTarget("val_acc", 0.9)


@pytest.fixture(scope="module")
def study(new_study):
    """A study that has ended: the baseline needs 3 s, trial 1 two; trial 2 is capped."""
    study = new_study()
    study.trial(0, 3.0, kind="baseline")
    study.trial(1, 2.0)
    study.begin(2)
    study.report(2, [0, 100])
    study.end(2, State.CENSORED, "capped", 1.0)
    study.close()
    study.copier().catch_up(over=True)
    return study


@pytest.fixture(scope="module")
def uri(study) -> str:
    return default_uri(study.path)


def test_a_studys_own_run_is_the_study(study, uri: str) -> None:
    candidates, baseline = sources.gather(["mlflow:digits/digits"], tracking_uri=uri)
    made = compare(candidates, baseline)
    assert [(r.name, r.median_seconds) for r in made.rows] == [("digits#1", 2), ("digits#0", 3)]
    assert made.row("digits#1").speedup == pytest.approx(1.5)
    folder = compare(*sources.gather([str(study.path)]))
    assert [r.median_seconds for r in folder.rows] == [2, 3]
    assert folder.rows[0].candidate.conditions == made.rows[0].candidate.conditions


def test_a_trials_run_by_name_and_by_id(study, uri: str) -> None:
    run_id = study.runs()["trial-0002"].info.run_id
    for name in ("trial-0002", run_id):
        found = sources.read(f"mlflow:digits/{name}", tracking_uri=uri).candidates[0]
        assert (found.trial, found.runs[0].reason) == (2, "capped")


def test_a_trial_named_by_itself_is_one_of_its_studys(study, uri: str, capfd) -> None:
    words = ["mlflow:digits/trial-0001", "mlflow:digits/trial-0000", "mlflow:digits/digits"]
    candidates, baseline = sources.gather(words, tracking_uri=uri)
    assert [c.name for c in candidates] == ["digits#1", "digits#0"]
    assert baseline == "digits#0"
    assert "Downloading" not in capfd.readouterr().err


def test_the_store_may_come_from_the_environment(uri: str, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match=r"there is no MLflow store in mlflow\.db: name one"):
        sources.read("mlflow:digits/digits")
    assert list(tmp_path.iterdir()) == []  # looking for a store makes none
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert sources.read("mlflow:digits/trial-0001").candidates[0].trial == 1


def test_names_that_are_wrong(uri: str) -> None:
    for word, message in {
        "mlflow:digit/digits": "unknown MLflow experiment 'digit'; did you mean 'digits'?",
        "mlflow:digits/trial-001": "unknown MLflow run 'trial-001'; did you mean 'trial-0001'?",
    }.items():
        with pytest.raises(UserError, match=re.escape(message)):
            sources.read(word, tracking_uri=uri)


def test_a_study_that_is_still_running_has_no_journal_there(new_study) -> None:
    study = new_study()
    study.trial(0, 3.0)
    study.copier().catch_up(over=False)
    with pytest.raises(UserError, match="it comes when the study has ended"):
        sources.read("mlflow:digits/digits", tracking_uri=default_uri(study.path))


def test_somebody_elses_run_is_timed_by_its_metric(study, uri: str) -> None:
    client = study.client()
    experiment = client.create_experiment("theirs")
    run = client.create_run(experiment, 1_000_000, run_name="plain")
    for i, value in enumerate((0.5, 0.8, 0.91, 0.95)):
        client.log_metric(run.info.run_id, "val_acc", value, 1_000_000 + 2500 * i, step=10 * i)
    with pytest.raises(UserError, match="say what it had to reach with --target"):
        sources.read("mlflow:theirs/plain", tracking_uri=uri)
    with pytest.raises(UserError, match="unknown metric 'val_ac'; did you mean 'val_acc'"):
        sources.read("mlflow:theirs/plain", target=ComparedTarget("val_ac", 0.9), tracking_uri=uri)
    found = sources.read("mlflow:theirs/plain", target=AIM, tracking_uri=uri).candidates[0]
    timed = found.runs[0]
    assert (timed.reached, timed.seconds, timed.samples, timed.unit) == (True, 5.0, 20, "steps")
    assert (found.conditions.clock, found.conditions.hardware) == ("wall", None)


def test_a_server_that_does_not_answer_is_one_line_without_secrets(monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    uri = "http://me:s3cret@127.0.0.1:9"
    with pytest.raises(UserError) as caught:
        sources.read("mlflow:digits/digits", tracking_uri=uri)
    assert "http://127.0.0.1:9" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
