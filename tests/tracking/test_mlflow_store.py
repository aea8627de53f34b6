"""What MLflow shows of a study: the contract's names and values, through MLflow's own client."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.tracking.names import clean
from autotune.trial import Hardware, Started, State, Suggested

CONFIG, HARDWARE = {"lr": 0.1}, Hardware("cpu", 2, 1.0)
POINT = {"lr.peak": 0.4, "lr.warmup": 1e-05, "lr.family": "cosine", "batch_size": 32}
NAMES = ("baseline", *(f"trial-{n:04d}" for n in (1, 2, 3, 4)), "confirm-0001-seed1", "trial-0006")
CLOCKS = ("queue", "setup", "data", "train", "eval", "checkpoint", "restore", "decide")


def whole_study(study) -> None:
    """One trial of each ending; trial 1 ends before the baseline."""
    study.begin(0, "baseline")
    study.trial(1, 2.0, point=POINT)
    study.report(0, [0, 100, 200], train_loss=0.5)
    study.end(0, State.REACHED, "target", 3.0)
    study.begin(2)
    study.report(2, [0, 100])
    study.end(2, State.CENSORED, "capped", 1.0)
    study.begin(3)
    study.end(3, State.FAILED, "ValueError", 0.0, "Traceback: boom")
    study.write(Suggested(4, {"lr": 0.1}, None, "trial", 104))
    study.end(4, State.INFEASIBLE, "constraint", 0.0)
    study.trial(5, 2.5, kind="confirm", of=1)
    study.trial(6, 1.0, hardware=Hardware("cpu", 2, 0.5, shared=True))
    study.close()


@pytest.fixture(scope="module")
def study(new_study):
    """Read only: one study for this file."""
    study = new_study()
    whole_study(study)
    study.copier().catch_up(over=True)
    return study


@pytest.fixture(scope="module")
def shown(study):
    return study.runs()


def test_runs_and_tags(study, shown) -> None:
    parent = shown["digits"]
    assert sorted(shown) == sorted(["digits", *NAMES])
    assert parent.data.tags["autotune.kind"] == "study"
    assert parent.data.tags["autotune.seed"] == "7"
    assert parent.data.tags["mlflow.source.git.commit"] == "c0ffee"
    user = (study.path / "experiment.json").owner()
    assert parent.info.status == "FINISHED"
    for number, (kind, state, reason, status) in enumerate(
        [
            ("baseline", "REACHED", "target", "FINISHED"),
            ("trial", "REACHED", "target", "FINISHED"),
            ("trial", "CENSORED", "capped", "FINISHED"),
            ("trial", "FAILED", "ValueError", "FAILED"),
            ("trial", "INFEASIBLE", "constraint", "FINISHED"),
            ("confirm", "REACHED", "target", "FINISHED"),
            ("trial", "REACHED", "target", "FINISHED"),
        ]
    ):
        run = shown[NAMES[number]]
        tags = run.data.tags
        assert tags["mlflow.parentRunId"] == parent.info.run_id
        assert tags["autotune.study_id"] == "5eed" * 8
        assert tags["autotune.trial"] == str(number)
        assert (run.info.user_id, tags["mlflow.user"]) == (user, user)
        assert tags["mlflow.source.name"] == "trainers.digits.train"
        assert (tags["autotune.kind"], tags["autotune.state"]) == (kind, state)
        assert (tags["autotune.reason"], run.info.status) == (reason, status)
        assert tags["autotune.attempts"] == ("0" if number == 4 else "1")
        assert tags["autotune.shared"] == ("true" if number == 6 else "false")
    assert shown["trial-0001"].data.tags["autotune.hardware"] == "2 x cpu (1 CPU)"


def test_params(shown) -> None:
    assert shown["trial-0001"].data.params == {
        "seed": "101",
        "lr": "0-10%: linear 0 -> 0.4, 10-100%: cosine 0.4 -> 0",
        "momentum": "constant 0.9",
        "batch_size": "32",
        "optimizer.name": "lars",
        "optimizer.betas": "[0.9, 0.99]",
        "lr.peak": "0.4",
        "lr.warmup": "1e-05",
        "lr.family": "cosine",
    }
    assert shown["confirm-0001-seed1"].data.params["lr.peak"] == "0.4", "that of trial 1"
    assert "lr.peak" not in shown["baseline"].data.params
    assert shown["digits"].data.params["target.metric"] == "acc"
    assert shown["digits"].data.params["target.limit"] == "60.0"


def test_metrics_by_step(study, shown) -> None:
    run = shown["baseline"]
    assert study.history(run, "acc") == [(0, 0.0), (100, 0.1), (200, 0.2)]
    assert study.history(run, "train_loss") == [(s, 0.5) for s in (0, 100, 200)]
    assert study.history(run, "train_seconds") == [(0, 0.0), (100, 1.0), (200, 2.0)]
    assert study.history(run, "momentum") == [(s, 0.9) for s in (0, 100, 200)]
    assert study.history(run, "batch_size") == [(s, 32.0) for s in (0, 100, 200)]
    assert study.history(run, "samples_per_second") == [(100, 100.0), (200, 100.0)]
    assert "lr" not in run.data.metrics  # a schedule's value at a step is the trainer's to report
    lines = [line for line in study.lines() if line["event"] == "reported" and line["trial"] == 0]
    points = study.client().get_metric_history(run.info.run_id, "acc")
    assert [p.timestamp for p in points] == [study.milliseconds(line) for line in lines]


def test_once_at_the_end(study, shown) -> None:
    reached, censored = shown["trial-0001"].data.metrics, shown["trial-0002"].data.metrics
    assert reached["time_to_target_seconds"] == 2.0
    assert "censored_at_seconds" not in reached
    assert censored["censored_at_seconds"] == 1.0
    assert "time_to_target_seconds" not in censored
    assert "speedup_vs_baseline" not in censored
    assert reached["best_acc"] == 0.2
    assert {k: reached[f"clock/{k}"] for k in CLOCKS} == {
        "queue": 0.25,
        "setup": 2.0,
        "data": 0.5,
        "train": 1.5,
        "eval": 0.2,
        "checkpoint": 0.0,
        "restore": 0.0,
        "decide": 0.0,
    }
    speedups = {name: run.data.metrics.get("speedup_vs_baseline") for name, run in shown.items()}
    assert speedups == {
        "digits": 1.5,
        "baseline": 1.0,
        "trial-0001": 1.5,
        "trial-0002": None,
        "trial-0003": None,
        "trial-0004": None,
        "confirm-0001-seed1": None,
        "trial-0006": None,
    }


def test_the_study_itself(study, shown) -> None:
    metrics = shown["digits"].data.metrics
    assert metrics["best_time_to_target_seconds"] == 2.0  # not that on other hardware
    counts = {k.removeprefix("trials_"): v for k, v in metrics.items() if k.startswith("trials_")}
    assert counts == {"running": 0, "reached": 3, "censored": 1, "failed": 1, "infeasible": 1}
    started = {row["trial"] for row in study.lines() if row["event"] == "started"}
    ends = [row for row in study.lines() if row["event"] == "ended" and row["trial"] in started]
    assert metrics["spent_seconds"] == pytest.approx(sum(row["at"] for row in ends))
    assert metrics["spent_seconds"] > 0
    assert "time_to_target_seconds" not in metrics


def test_times_are_the_journals(study, shown) -> None:
    lines = [(line.get("trial"), study.milliseconds(line)) for line in study.lines()]
    mine = [at for trial, at in lines if trial == 1]
    info = shown["trial-0001"].info
    assert (info.start_time, info.end_time) == (mine[0], mine[-1])
    info = shown["digits"].info
    assert (info.start_time, info.end_time) == (lines[0][1], lines[-1][1])


def test_artifacts(study, shown) -> None:
    run = shown["trial-0001"]
    config = json.loads(study.artifact(run, "config.json"))
    assert config["optimizer"] == {"name": "lars", "betas": [0.9, 0.99]}
    assert sorted(json.loads(study.artifact(run, "schedules.json"))) == ["lr", "momentum"]
    names = {
        n: {a.path for a in study.client().list_artifacts(r.info.run_id)} for n, r in shown.items()
    }
    assert names["trial-0001"] == {"config.json", "schedules.json", "schedules.png"}
    assert names["trial-0003"] == names["trial-0001"] | {"error.txt"}
    assert names["trial-0004"] == {"config.json"}
    own = {"best.json", "best_schedules.png", "experiment.json", "journal.jsonl"}
    assert names["digits"] == own
    assert study.artifact(shown["trial-0003"], "error.txt") == "Traceback: boom"
    best = json.loads(study.artifact(shown["digits"], "best.json"))
    assert (best["trial"], best["time_to_target_seconds"]) == (1, 2.0)
    journal = (study.path / "journal.jsonl").read_text()
    assert study.artifact(shown["digits"], "journal.jsonl") == journal


def test_the_leaderboard_is_the_sorted_table(study, shown) -> None:
    client = study.client()
    found = client.search_runs(
        [shown["digits"].info.experiment_id],
        "metrics.time_to_target_seconds > 0",
        order_by=["metrics.time_to_target_seconds ASC"],
    )
    assert [r.info.run_name for r in found] == [
        "trial-0006",
        "trial-0001",
        "confirm-0001-seed1",
        "baseline",
    ]


def test_awkward_values(new_study) -> None:
    study = new_study()
    config = {f"p{i}": i for i in range(150)} | {"long": "x" * 9000, "none": None}
    config |= {"a@b": 1, "a#b": 2, "a_b": 3, "file": "caf\udce9\0.jpg"}
    study.begin(0, config=config)
    metrics = {f"m{i}": float(i) for i in range(1200)} | {"val/top@5": math.nan, "up": math.inf}
    metrics |= {"val/top#5": 5.0, "caf\udce9": 1.0}
    study.report(0, [0, 100], **metrics)
    study.end(0, State.FAILED, "r" * 9000, 1.0, "e" * 100_000)
    said: list[str] = []
    study.copier(said).catch_up(over=True)
    run = study.runs()["trial-0000"]
    assert said == []
    assert len(run.data.params) == 157
    assert run.data.params["long"] == "x" * 4997 + "..."
    shown = run.data.params
    assert [shown[name] for name in ("a_b", "a_b_2", "a_b_3", "none")] == ["1", "2", "3", "None"]
    assert shown["file"] == "caf\\udce9\\x00.jpg"
    assert math.isnan(run.data.metrics["val/top_5"])
    assert (run.data.metrics["val/top_5_2"], run.data.metrics["caf_"]) == (5.0, 1.0)
    assert run.data.metrics["up"] > 1e308
    assert run.data.metrics["m1199"] == 1199.0
    assert len(run.data.tags["autotune.reason"]) == 2000
    assert len(study.artifact(run, "error.txt")) == 100_000


def test_what_mlflow_refuses_is_reported_and_left_out(new_study) -> None:
    study = new_study()
    study.begin(0)
    study.copier().catch_up(over=False)
    client, run = study.client(), study.runs()["trial-0000"].info.run_id
    lines = (study.path / "journal.jsonl").read_text().replace('"batch_size":32', '"batch_size":64')
    (study.path / "journal.jsonl").write_text(lines)  # a param never changes in MLflow
    said: list[str] = []
    study.report(0, [0])
    study.copier(said).catch_up(over=True)
    assert len(said) == 1
    assert "batch_size" in said[0]
    assert client.get_run(run).data.metrics["acc"] == 0.0


@given(st.text(max_size=300))
def test_every_name_becomes_one_that_mlflow_takes(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(clean(name))
    assert len(clean(name)) <= 250


def test_confirmations_name_what_they_repeat_and_the_parent_has_their_numbers(new_study) -> None:
    study = new_study()
    study.trial(0, 6.0, kind="baseline")
    study.trial(1, 2.0)
    for number, repeats, seconds in ((2, 1, 3.0), (3, 0, 8.0), (4, 0, 10.0), (5, 1, 3.5)):
        study.write(Suggested(number, CONFIG, None, "confirm", 100 + number, repeats=repeats))
        study.write(Started(number, 0.25, HARDWARE))
        study.report(number, [0, 100])
        study.end(number, State.REACHED, "target", seconds)
    study.close()
    study.copier().catch_up(over=True)
    shown = study.runs()
    tags = shown["confirm-0001-seed2"].data.tags
    assert (tags["autotune.kind"], tags["autotune.repeats"]) == ("confirm", "1")
    assert "autotune.repeats" not in shown["trial-0001"].data.tags
    means = {n: r.data.metrics.get("confirmed_mean_seconds") for n, r in shown.items()}
    assert (means["trial-0001"], means["baseline"]) == (3.25, 9.0)
    assert sum(mean is not None for mean in means.values()) == 3, "and the study's own run"
    assert "speedup_vs_baseline" not in shown["confirm-0001-seed2"].data.metrics
    numbers = shown["digits"].data.metrics
    assert numbers["trials_reached"] == 2, "those of the search"
    assert numbers["best_time_to_target_seconds"] == numbers["confirmed_tuning_seconds"] == 2.0
    assert numbers["confirmed_mean_seconds"] == numbers["confirmed_median_seconds"] == 3.25
    assert (numbers["confirmed_runs"], numbers["confirmed_reached"]) == (2, 2)
    speedup = (8.0 * 10.0 / (3.0 * 3.5)) ** 0.5
    assert numbers["confirmed_speedup_vs_baseline"] == pytest.approx(speedup)
    best = json.loads(study.artifact(shown["digits"], "best.json"))
    assert (best["trial"], best["confirmed_mean_seconds"]) == (1, 3.25)
