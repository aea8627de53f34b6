"""Limits: a result that breaks one is none; what they need is reported, or measured at the end."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sims import METRIC, lines, race, racing, simulate

import autotune as at
from autotune.algorithms.ranking.confirmation import confirmations
from autotune.algorithms.ranking.repeats import with_mean_times
from autotune.backends.protocol import Progress
from autotune.backends.simulator import SimCurve
from autotune.cli.text import print_best, print_status
from autotune.evaluation import summary
from autotune.evaluation.comparison import from_studies
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study.driver import limits
from autotune.study.driver.state import StudyState
from autotune.study.experiment import check_trainer
from autotune.study.manifest import Manifest
from autotune.study.result import read
from autotune.trial import State

REACHED, INFEASIBLE, COMPLETED = State.REACHED, State.INFEASIBLE, State.COMPLETED


def limited(most: Any, rates: tuple[float, ...] = (2.0, 1.0), **settings: Any) -> at.Experiment:
    return replace(racing([*rates], **settings), limits=most)


def sized(config: Mapping[str, Any], seed: int) -> SimCurve:
    """The faster a configuration is, the larger its model; it is smaller while it trains."""
    points = race(config, seed).points
    size = 10 * config["rate"]
    return SimCurve(
        [replace(p, metrics={**p.metrics, "size": size + 50 - p.step / 10}) for p in points]
    )


# --- the value ------------------------------------------------------------------------------------


def test_a_limit_in_words() -> None:
    limit = at.Limit("model_megabytes", 0.1)
    assert str(limit) == "model_megabytes at most 0.1"
    assert limit.broken({"model_megabytes": 0.134}) == "model_megabytes 0.134 > 0.1"
    assert limit.broken({"model_megabytes": 0.100001}) == "model_megabytes 0.100001 > 0.1"
    assert limit.broken({"model_megabytes": float("nan")}) == "model_megabytes nan > 0.1"
    assert not limit.broken({"model_megabytes": 0.1})
    assert not limit.broken({})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: at.Limit("", 1), "Limit metric must be a metric's name but got ''"),
        (lambda: at.Limit("size", "1"), "Limit at_most must be a finite number but got '1'"),  # type: ignore[arg-type]
        (lambda: at.Limit("size", float("inf")), "Limit at_most must be a finite number"),
        (lambda: limited([("size", 1)]), "Experiment limits must be a list of Limit but got"),
        (lambda: limited(at.Limit("size", 1)), "Experiment limits must be a list of Limit but got"),
        (
            lambda: limited([at.Limit("size", 1), at.Limit("size", 2)]),
            "Experiment limits has two limits on 'size'",
        ),
    ],
)
def test_wrong_arguments(make: Any, says: str) -> None:
    with pytest.raises(at.UserError, match=says):
        make()


# --- what is reported -----------------------------------------------------------------------------


def test_the_value_in_the_report_at_the_target_counts(fast_path: Path) -> None:
    result = simulate(limited([at.Limit("size", 55)]), fast_path, 2, sized)
    fast, slow = result.trials
    assert fast.state is INFEASIBLE
    assert fast.reason == f"size {fast.reports[-1].metrics['size']:g} > 55"
    assert slow.state is REACHED
    assert slow.reports[0].metrics["size"] > 55
    assert result.best is slow
    ended = [row for row in lines(fast_path) if row["event"] == "ended"]
    assert ended[0]["reason"] == fast.reason


def test_several_limits_are_all_named(fast_path: Path) -> None:
    both = [at.Limit("size", 1), at.Limit(METRIC, 0.5)]
    result = simulate(limited(both, (1.0,)), fast_path, 1, sized)
    assert result.trials[0].reason.count(" > ") == 2


def test_without_a_value_it_is_that_of_the_best_report(fast_path: Path) -> None:
    def peaked(config: Mapping[str, Any], seed: int) -> SimCurve:
        points = sized(config, seed).points[:6]
        metrics = [{METRIC: 0.5 - abs(i - 3) / 10, "size": 10.0 - i} for i in range(6)]
        return SimCurve([replace(p, metrics=m) for p, m in zip(points, metrics, strict=True)])

    target = at.Target(METRIC, limit=60)
    for most, state in ((7, COMPLETED), (6.5, INFEASIBLE)):
        folder = fast_path / f"{most}"
        tried = replace(limited([at.Limit("size", most)], (1.0,)), target=target)
        assert simulate(tried, folder, 1, peaked, pruner="none").trials[0].state is state


def test_a_metric_that_nobody_has_is_one_line(fast_path: Path) -> None:
    with pytest.raises(at.UserError, match="unknown limited metric 'sise'; did you mean 'size'"):
        simulate(limited([at.Limit("sise", 55)]), fast_path, 2, sized)
    ends = [row["reason"] for row in lines(fast_path) if row["event"] == "ended"]
    assert "target" not in ends
    late = limited([at.Limit("latency", 1)], (1.0,), limit=3.0)
    with pytest.raises(at.UserError, match="unknown limited metric 'latency'"):
        simulate(late, fast_path / "censored", 2, sized)


def test_a_name_like_one_that_is_measured_is_refused_before_anything_runs() -> None:
    near = replace(measured_experiment(), limits=[at.Limit("sizes", 1)])
    with pytest.raises(at.UserError, match="unknown limited metric 'sizes'; did you mean 'size'"):
        check_trainer(near)


def test_a_repeat_that_breaks_a_limit_counts_like_one_that_missed(fast_path: Path) -> None:
    def lucky(config: Mapping[str, Any], seed: int) -> SimCurve:
        points = race(config, seed).points
        first.add(config["rate"])
        size = 1.0 if len(seeds.setdefault(config["rate"], [])) < 2 else 9.0
        seeds[config["rate"]].append(seed)
        return SimCurve([replace(p, metrics={**p.metrics, "size": size}) for p in points])

    first: set[float] = set()
    seeds: dict[float, list[int]] = {}
    tried = limited([at.Limit("size", 5)], (1.0,))
    result = simulate(tried, fast_path, 1, lucky, repeats=2)
    assert [t.state for t in result.trials] == [REACHED, REACHED, INFEASIBLE]
    assert result.trials[2].reason == "size 9 > 5"
    (found,) = confirmations(result.trials, result.target)
    assert (found.reached, found.times, found.median) == (1, (10.0, 50.0), None)
    assert [(run.reached, run.seconds) for run in found.timed_runs] == [(True, 10), (False, 50)]
    (of_study,) = from_studies.candidates(from_studies.read(fast_path))
    assert [(run.reached, run.seconds) for run in of_study.runs] == [(True, 10), (False, 50)]
    first, good, bad = result.trials
    races = [first, *(replace(t, kind="race") for t in (good, bad))]
    (mean,) = with_mean_times(races, result.target)
    assert mean.seconds == pytest.approx(70 / 3)
    full = replace(bad, reason="out of memory")
    (left,) = confirmations((first, good, full), result.target)
    assert left.times == (10.0,), "what ran out of memory does not count"
    best = at.Target(METRIC, limit=50)
    done = [replace(t, state=COMPLETED) for t in (first, good)]
    (left,) = confirmations((*done, bad), best)
    assert (left.reached, len(left.results), left.median) == (1, 2, None)
    assert math.isfinite(left.mean)


# --- what is measured -----------------------------------------------------------------------------


def test_with_validation_beside_training_what_is_measured_has_no_limits(tmp_path: Path) -> None:
    from trainers import image

    fixed: dict[str, Any] = {"data": "digits", "model": "mlp", "width": 32, "lr": 0.1}
    fixed |= {"max_epochs": 2, "validation": "beside"}
    space = {name: at.Fixed(value) for name, value in fixed.items()}
    target = at.Target("val_accuracy", limit=60)
    tried = at.Experiment("late", image.train, at.SearchSpace(space), target)
    check_trainer(replace(tried, limits=[at.Limit("val_loss", 10)]))
    tried = replace(tried, limits=[at.Limit("model_megabytes", 10)])
    with pytest.raises(at.UserError, match=r"validation must be 'inline' with limits .*'beside'"):
        at.run(tried, trials=1, out=tmp_path / "study", backend="local")
    some = {**space, "validation": at.Choice(["inline", "beside"])}
    check_trainer(replace(tried, space=at.SearchSpace(some)))


def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Comes to the target at its third report; says how often its model was measured."""
    counted = {"times": 0}

    def measure() -> dict[str, float]:
        counted["times"] += 1
        if config["rate"] > 90:
            raise RuntimeError("it cannot be measured")
        return {"size": config["rate"], "times": counted["times"]}

    for step in range(9):
        yield at.Milestone(step, lambda s=step: {METRIC: s / 3}, measure=measure)  # type: ignore[misc]


train.measures = ("size",)  # type: ignore[attr-defined]


def measured_experiment(**settings: Any) -> at.Experiment:
    return at.Experiment(
        "measured",
        train,
        at.SearchSpace({"rate": at.Float(1.0, 99.0)}),
        at.Target(METRIC, 1.0, limit=600.0),
        scaling=at.Scaling(max_concurrent_trials=1),
        configs=[{"rate": 2.0}, {"rate": 8.0}, {"rate": 99.0}],
        limits=[at.Limit("size", 5)],
        **settings,
    )


def test_a_model_is_measured_where_the_target_is_reached_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[StudyState] = []

    def asked(state: StudyState, signal: Progress) -> bool:
        states.append(state)
        return ask(state, signal)

    ask = limits.asked
    monkeypatch.setattr(limits, "asked", asked)
    quiet: dict[str, Any] = {
        "progress": False,
        "tracking_uri": "off",
        "experience": "off",
        "pruner": "none",
    }
    folder = tmp_path / "study"
    result = at.run(measured_experiment(), trials=3, out=folder, backend="local", **quiet)
    small, large, broken = result.trials
    assert [small.state, large.state, broken.state] == [REACHED, INFEASIBLE, State.FAILED]
    assert large.reason == "size 8 > 5"
    assert "it cannot be measured" in broken.reason
    assert not states[-1].measuring
    for trial in (small, large):
        *earlier, last = trial.reports
        assert last.metrics == {METRIC: 1.0, "size": trial.config["rate"], "times": 1}
        assert all("size" not in report.metrics for report in earlier)
    assert read(folder, result.target).trials == result.trials
    check_shown(folder, result)
    check_changed(folder)


def check_shown(folder: Path, result: at.StudyResult) -> None:
    frame = result.to_frame()
    assert frame["size"].tolist()[:2] == [2.0, 8.0]
    assert frame["reason"][1] == "size 8 > 5"
    out, manifest = io.StringIO(), Manifest.read(folder)
    found = summary.summary(read(folder, manifest.target), "measured")
    document = {**found, "driver_alive": False, "trials_planned": 3}
    print_status(json.loads(json.dumps(document)), out)
    assert "  limit: size at most 5\n" in out.getvalue()
    print_best(found["best"], out)
    assert "  size: 2\n" in out.getvalue()


def check_changed(folder: Path) -> None:
    """Another limit is another study; a manifest of before there were limits has none."""
    quiet: dict[str, Any] = {
        "progress": False,
        "tracking_uri": "off",
        "experience": "off",
        "pruner": "none",
    }
    other = replace(measured_experiment(), limits=[at.Limit("size", 6)])
    with pytest.raises(at.UserError, match="holds another study: its limits"):
        at.run(other, trials=3, out=folder, backend="local", **quiet)
    kept = json.loads((folder / EXPERIMENT_JSON).read_text())
    assert kept.pop("limits") == [{"metric": "size", "at_most": 5}]
    assert Manifest.from_json(kept, folder).limits == []
    assert Manifest.read(folder).limits == [at.Limit("size", 5)]


@pytest.mark.slow
def test_two_ranks_measure_the_model_that_they_export(tmp_path: Path) -> None:
    from trainers import image

    setting = {"data": "digits", "model": "mlp", "pruning": "structured", "sparsity": 0.5}
    chosen = {**setting, "quantization": "post_training", "lr": 0.1, "batch_size": 64}
    tried = at.Experiment(
        "small",
        image.train,
        at.SearchSpace({k: at.Fixed(v) for k, v in chosen.items()} | {"width": at.Int(32, 512)}),
        at.Target("val_accuracy", 0.8, limit=600.0),
        scaling=at.Scaling(num_workers=2, max_concurrent_trials=1),
        configs=[{"width": 64}, {"width": 512}],
        limits=[at.Limit("model_megabytes", 0.02), at.Limit("latency_ms", 60_000)],
    )
    quiet: dict[str, Any] = {
        "progress": False,
        "tracking_uri": "off",
        "experience": "off",
        "pruner": "none",
    }
    result = at.run(tried, trials=2, out=tmp_path / "study", backend="local", **quiet)
    small, large = result.trials
    assert small.state is REACHED
    assert large.state is INFEASIBLE
    assert large.reason.startswith("model_megabytes 0.")
    assert 0 < small.reports[-1].metrics["latency_ms"] < 60_000
