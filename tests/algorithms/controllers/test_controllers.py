"""Controllers: what they see and do, and that they learn, on a virtual clock."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import populations
import pytest
from learning_rate_problem import METRIC, problem, train_live
from sims import lines, simulate

import autotune as at
from autotune.algorithms.controllers import make_controller, policy, regulator, weights_file
from autotune.algorithms.controllers.features import FEATURES, View, change_of, decisions
from autotune.algorithms.controllers.learning import Episode, awr
from autotune.algorithms.controllers.linear import Linear, noises, values_of
from autotune.algorithms.controllers.pbt import Population
from autotune.backends.simulator import Live
from autotune.evaluation.export.replay import SamePoint
from autotune.storage import journal, manifest
from autotune.study import result
from autotune.study.factory import _controller
from autotune.trial import KNOBS, Change, Hardware, Report, State, Target, Trial

TARGET = Target(METRIC, 0.97, limit=40.0)


def study(folder: Path, trials: int, lr: float | None = 0.1, **options: Any) -> at.StudyResult:
    sampler = SamePoint() if lr is not None else "random"
    experiment = options.pop("experiment", None) or problem(lr)
    options = {"sampler": sampler, "pruner": "none", "workers": 4, **options}
    return simulate(experiment, folder, trials, train_live, **options)


def mean_seconds(result: at.StudyResult) -> float:
    return statistics.fmean(t.time_to_target or TARGET.limit for t in result.trials)


def trial(*reports: dict[str, float], config: dict[str, Any] | None = None, **more: Any) -> Trial:
    made = tuple(Report(10 * i, float(i), metrics) for i, metrics in enumerate(reports))
    seconds = made[-1].seconds if made else 0.0
    return Trial(0, config or {}, reports=made, seconds=seconds, **more)


# --- what is seen, and what is done ---------------------------------------------------------------


def test_features_have_no_dimension_and_are_what_they_say() -> None:
    first = {METRIC: 0.1, "train_loss": 2.0, "val_loss": 2.0, "grad_norm": 1.0, "lr": 0.1}
    second = {METRIC: 0.5, "train_loss": 0.2, "val_loss": 0.4, "grad_norm": 10.0, "lr": 0.2}
    second |= {"grad_norm_spread": 0.5, "weight_norm": 200.0, "momentum": 0.9}
    seen = trial({}, first, second, changes=((10, Change(2.0)),))
    found = dict(zip(FEATURES, View(seen, TARGET).features(2, 1), strict=True))
    left = 0.47 / 0.87
    assert found == pytest.approx(
        {
            "bias": 1.0,
            "loss": -1.0,
            "loss_slope": -1.0,
            "grad_change": 1.0,
            "grad_spread": 0.5,
            "gap": math.log10(2),
            "metric_slope": 1 - left,
            "metric": left,
            "time": 2 / 40,
            "lr": math.log10(2),
            "update": 1.0,  # 0.2 * 10 / (0.1 * 200) is 0.1
        }
    )


def test_features_of_a_trainer_that_reports_little_are_zero() -> None:
    seen = trial({}, {METRIC: 0.1}, {METRIC: float("nan")})
    found = dict(zip(FEATURES, View(seen, TARGET).features(2, None), strict=True))
    assert {k: v for k, v in found.items() if v} == {
        "bias": 1.0,
        "metric": 3.0,
        "time": 0.05,
    }


@pytest.mark.parametrize("bad", [math.inf, math.nan, 0.0])
def test_features_after_a_gradient_that_overflowed_are_finite(bad: float) -> None:
    metrics = {METRIC: 0.1, "grad_norm": 1.0, "weight_norm": 10.0, "momentum": 0.9, "lr": 0.1}
    seen = View(trial({}, metrics, {**metrics, "grad_norm": bad}, metrics, metrics), TARGET)
    for at_report in range(4):
        for before in (None, *range(at_report)):
            assert all(map(math.isfinite, seen.features(at_report, before)))


def test_the_decay_of_a_schedule_is_no_error_to_be_put_right() -> None:
    metrics = {METRIC: 0.1, "grad_norm": 1.0, "weight_norm": 10.0, "momentum": 0.9}
    rows = [{**metrics, "lr": lr} for lr in (0.05, 0.1, 0.02)]
    seen = View(trial({}, *rows, config={"lr": at.Linear(0.2, 0.0)}), TARGET)
    place = list(FEATURES).index("update")
    assert [seen.features(i, None)[place] for i in (1, 2, 3)] == pytest.approx([math.log10(20)] * 3)
    plain = View(trial({}, *rows, config={"lr": 0.1}), TARGET)  # the greatest so far is the peak
    assert plain.features(1, None)[place] == pytest.approx(math.log10(5))
    assert plain.features(3, None)[place] == pytest.approx(1.0)


@pytest.mark.parametrize("knobs", [("lr",), KNOBS])
def test_an_action_is_read_back_from_its_change(knobs: tuple[str, ...]) -> None:
    now = {METRIC: 0.1, "batch_size": 6400.0, "momentum": 0.9, "lr": 0.1}
    seen = trial({}, now, hardware=Hardware(num_workers=2))
    actions = {knob: 0.3 - 0.4 * i for i, knob in enumerate(knobs)}
    change = change_of(actions, seen)
    changed = replace(seen, changes=((10, change),))
    (decision,) = decisions(changed, knobs, TARGET)
    assert decision.actions == pytest.approx(actions, abs=1e-3)
    assert (change.batch_size is None) == (change.momentum is None) == (len(knobs) == 1)
    assert change_of(dict.fromkeys(knobs, 0.0), seen).lr_factor == 1.0


def test_actions_are_kept_within_bounds() -> None:
    now = {METRIC: 0.1, "batch_size": 8.0, "momentum": 0.994}
    seen = trial({}, now, hardware=Hardware(num_workers=6), changes=((0, Change(900.0)),))
    most = change_of({"lr": 9.0, "batch_size": -9.0, "momentum": 9.0}, seen)
    assert most.lr_factor * 900 == pytest.approx(1000)
    assert most.batch_size == 6
    assert most.momentum == 0.995
    least = change_of({"lr": -9.0, "batch_size": 9.0, "momentum": -9.0}, seen)
    assert least.lr_factor == pytest.approx(math.exp(-1.05))
    assert least.batch_size == round(8 * math.exp(1.05))
    assert least.momentum == pytest.approx(1 - 0.006 * math.exp(0.525))


def test_the_baseline_is_never_changed(fast_path: Path) -> None:
    experiment = problem(None, baseline={"lr": 0.01})
    result = study(fast_path, 4, None, experiment=experiment, controller="regulator")
    assert result.trials[0].kind == "baseline"
    assert [bool(t.changes) for t in result.trials] == [False, True, True, True]


def test_decisions_wait_for_the_warmup_and_keep_their_distance(fast_path: Path) -> None:
    (only,) = study(fast_path, 1, controller="policy(every=0.1)").trials
    steps = [step for step, _ in only.changes]
    assert steps[0] == 2  # 5 % of a limit of 40 s, at a milestone a second
    assert {b - a for a, b in pairwise(steps)} == {4}


# --- the regulator --------------------------------------------------------------------------------


@pytest.mark.parametrize("lr", [0.01, 0.3, 1.0])
def test_the_regulator_recovers_from_a_wrong_learning_rate(lr: float, fast_path: Path) -> None:
    alone = study(fast_path / "a", 4, lr)
    regulated = study(fast_path / "b", 4, lr, controller="regulator(setpoint=0.02)")
    assert all(t.state is State.REACHED for t in regulated.trials)
    assert mean_seconds(regulated) < 0.8 * mean_seconds(alone)


def test_the_regulator_needs_a_metric(fast_path: Path) -> None:
    seen = trial({}, {METRIC: 0.1}, {METRIC: 0.2}, {METRIC: 0.2}, {METRIC: 0.2})
    with pytest.raises(at.UserError, match=r"needs the metric 'update_ratio'.*val_accuracy"):
        regulator()(replace(seen, seconds=30.0), [], TARGET)


def test_what_the_regulator_lacks_is_reported_while_the_baseline_runs(fast_path: Path) -> None:
    def silent(config: Mapping[str, Any], seed: int) -> Live:
        live, change = train_live(config, seed), None
        while True:
            point = live.send(change)
            metrics = {k: v for k, v in point.metrics.items() if k != "update_ratio"}
            change = yield replace(point, metrics=metrics)

    experiment = problem(None, baseline={"lr": 0.1})
    with pytest.raises(at.UserError, match=r"^the regulator needs the metric 'update_ratio'"):
        simulate(experiment, fast_path, 4, silent, workers=1, controller="regulator")
    (only,) = result.read(fast_path, TARGET).trials
    assert (only.kind, only.reason) == ("baseline", "interrupted")
    assert only.seconds < 0.1 * TARGET.limit


def test_by_its_name_from_python() -> None:
    assert at.controllers.regulator is regulator
    assert at.controllers.policy("robust").start == regulator().start


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["robust", "specialist"])
def test_a_policy_improves_and_holds_on_fresh_seeds(setting: str, fast_path: Path) -> None:
    lr = 0.1 if setting == "specialist" else None  # any of two decades
    before = study(fast_path / "a", 32, lr, seed=7)
    folder = fast_path / "b"
    spec = f"policy(setting={setting!r}, setpoint=0.02)"
    study(folder, 64, lr, controller=spec, seed=1)
    weights = json.loads((folder / weights_file.FILE).read_text())
    assert weights["trials"] == 64
    learned = Linear(weights_file.read(folder).weights, knobs=("lr",))
    after = study(fast_path / "c", 32, lr, controller=learned, seed=7)
    assert mean_seconds(after) < 0.9 * mean_seconds(before)


def test_nothing_is_learned_where_nothing_matters() -> None:
    random = np.random.default_rng(1)
    episodes = []
    for worth in random.normal(size=96):
        noise = random.normal(size=(20, 1))
        features = np.column_stack([np.ones(20), random.normal(size=(20, 2))])
        episodes.append(Episode(features, 0.3 * noise, float(worth)))
    assert np.abs(awr(np.zeros((1, 3)), episodes)).max() < 0.15


def test_what_is_worth_more_draws_the_policy() -> None:
    """Actions above the mean are worth it, where a feature is on."""
    random = np.random.default_rng(2)
    episodes = []
    for _ in range(64):
        noise = random.normal(size=(10, 1))
        switch = random.integers(0, 2, size=(10, 1)).astype(float)
        worth = float((noise * switch).sum())
        episodes.append(Episode(np.hstack([np.ones((10, 1)), switch]), noise, worth))
    bias, switch = awr(np.zeros((1, 2)), episodes)[0]
    assert switch > 0.15
    assert abs(bias) < switch


def test_trials_that_diverged_are_worth_least() -> None:
    def ended(number: int, reason: str, value: float, seconds: float = 9.0) -> Trial:
        state = State.REACHED if reason == "target" else State.CENSORED
        reports = (Report(1, 1.0, {METRIC: value}), Report(2, seconds, {METRIC: value}))
        return Trial(number, {}, state=state, reason=reason, seconds=seconds, reports=reports)

    rows = [("diverged", 0.9), ("limit", 0.5), ("target", 0.97), ("limit", 0.6)]
    found = values_of([ended(i, *row) for i, row in enumerate(rows)], TARGET)
    assert sorted(found, key=found.__getitem__) == [0, 1, 3, 2]


# --- repeatable, resumable, saved -----------------------------------------------------------------


def test_a_study_decides_alike_again_and_when_it_is_resumed(fast_path: Path) -> None:
    options = {"controller": "policy", "seed": 3}
    whole = study(fast_path / "a", 24, **options)
    study(fast_path / "b", 24, **options)
    assert lines(fast_path / "a") == lines(fast_path / "b")
    other = study(fast_path / "c", 24, **{**options, "seed": 4})
    assert other.trials[0].changes != whole.trials[0].changes
    # Cut where a trial has just ended and none runs beside it that would begin again.
    one = study(fast_path / "d", 24, workers=1, **options)
    rows = (fast_path / "d" / journal.JOURNAL).read_bytes().splitlines(keepends=True)
    ends = [i + 1 for i, row in enumerate(rows) if b'"event":"ended"' in row]
    for end in (ends[3], ends[16]):
        folder = fast_path / f"cut-{end}"
        shutil.copytree(fast_path / "d", folder)
        (folder / journal.JOURNAL).write_bytes(b"".join(rows[:end]))
        again = study(folder, 24, workers=1, **options)
        assert [t.changes for t in again.trials] == [t.changes for t in one.trials]
        policies = [
            json.loads((f / weights_file.FILE).read_text()) for f in (folder, fast_path / "d")
        ]
        assert policies[0] == policies[1]


def test_a_policy_is_saved_shown_and_gone_on_from(fast_path: Path) -> None:
    study(fast_path / "a", 32, controller="policy", seed=1)
    policy = json.loads((fast_path / "a" / weights_file.FILE).read_text())
    assert policy["study"] == "steered"
    assert policy["weights"].keys() == {"lr"}
    assert policy["weights"]["lr"].keys() == policy["features"].keys() == FEATURES.keys()
    assert weights_file.table(policy).count("\n") == len(FEATURES)
    place = fast_path / "a"
    first = study(fast_path / "b", 8, controller="policy", start_from=place, seed=2)
    fresh = study(fast_path / "c", 8, controller="policy", seed=2)
    assert first.trials[0].changes != fresh.trials[0].changes
    policy = json.loads((fast_path / "b" / weights_file.FILE).read_text())
    assert (policy["from"], policy["from_study"]) == (str(place), "steered")
    file = study(
        fast_path / "d", 8, controller="policy", start_from=place / weights_file.FILE, seed=2
    )
    assert [t.changes for t in file.trials] == [t.changes for t in first.trials]


def test_robust_starts_from_the_packages_weights_where_a_study_begins(fast_path: Path) -> None:
    spec, regulated = (f"policy(setting='robust'{more})" for more in ("", ", setpoint=0.04"))

    def changes(name: str, trials: int, controller: str) -> list[Any]:
        found = study(fast_path / name, trials, workers=1, controller=controller, seed=2)
        return [t.changes for t in found.trials]

    whole, as_regulator = changes("a", 6, spec), changes("b", 6, regulated)
    assert whole[0] != as_regulator[0]
    begun = json.loads((fast_path / "a" / "experiment.json").read_text())["start_controller"]
    assert begun["weights"] == weights_file.shipped().weights
    assert begun["weights"]["lr"].keys() == FEATURES.keys()
    assert changes("c", 3, spec) == whole[:3]
    assert changes("c", 6, spec) == whole
    # A study of an earlier version goes on as it began: its manifest has no such weights.
    assert changes("d", 3, regulated) == as_regulator[:3]
    assert changes("d", 6, spec) == as_regulator


def test_a_confirmation_has_no_noise() -> None:
    metrics = {METRIC: 0.1, "lr": 0.1}
    seen = trial({}, metrics, metrics, metrics, metrics, seed=5)
    noisy = policy()(replace(seen, seconds=30.0), [], TARGET)
    quiet = policy()(replace(seen, seconds=30.0, kind="confirm"), [], TARGET)
    assert noisy == Change(math.exp(0.7 * 0.3 * noises(seen, 40, ("lr",))["lr"]))
    assert quiet == Change(1.0)


def test_only_knobs_that_the_experiment_allows_are_turned(fast_path: Path) -> None:
    everything = problem(0.1, knobs=KNOBS)
    result = study(fast_path / "a", 8, controller="policy", experiment=everything)
    made = [change for t in result.trials for _, change in t.changes]
    assert all(change.batch_size is not None for change in made)
    assert all(change.momentum is not None for change in made)
    result = study(fast_path / "b", 8, controller="policy")
    made = [change for t in result.trials for _, change in t.changes]
    assert {(change.batch_size, change.momentum) for change in made} == {(None, None)}
    with pytest.raises(at.UserError, match=r"'momentum', which the experiment does not allow"):
        study(fast_path / "c", 8, controller=policy(knobs=["momentum"]))
    with pytest.raises(ValueError, match="Experiment knobs must be some of lr, batch_size"):
        problem(0.1, knobs=("lrs",))


# --- names ----------------------------------------------------------------------------------------

MISTAKES = {
    "polcy": "unknown controller 'polcy'; did you mean 'policy'? "
    "(allowed: autolrs, module:function, noise_scale, none, pbt, policy, regulator)",
    "policy(setting='robst')": "policy setting 'robst'; did you mean 'robust'?",
    "policy(learner='ppo')": "the argument learner was removed, as advantage-weighted regression",
    "policy(setings='robust')": "unknown argument of policy 'setings'; did you mean 'setting'?",
    "policy(knobs=['moment'])": "unknown knob 'moment'; did you mean 'momentum'?",
    "policy('robust')": "give its arguments by keyword",
    "policy(noise=min())": "arguments must be plain values",
    "policy(setting=robust)": "arguments must be plain values, and a text in quotes: "
    "setting='robust'",
    "policy(noise=none)": "arguments must be plain values: noise=None",
    "policy(noise=-1)": "policy noise must be more than 0 but got -1",
    "policy(": "unknown controller 'policy('; did you mean 'policy'?",
    "regulator(setpoint=2)": "regulator setpoint must lie between 0 and 1 but got 2",
    "noise_scale(share=0)": "noise_scale share must be more than 0 and finite but got 0",
    "noise_scale(share='x')": "share must be a number but got 'x'",
    "noise_scale(lr='square')": "unknown noise_scale lr 'square'; did you mean 'sqrt'? "
    "(allowed: constant, linear, sqrt)",
    "noise_scale(most=1)": "noise_scale most must be at least 2 and finite but got 1",
    "noise_scale": "the controller turns 'batch_size', which the experiment does not allow: say "
    "Experiment(..., knobs=('lr', 'batch_size'))",
    "regulator(every=0)": "every must lie between 0 and 1 but got 0",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_gets_one_clear_line(text: str) -> None:
    with pytest.raises(at.UserError) as error:
        make_controller(text, ("lr",))
    assert MISTAKES[text] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_policy_gets_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(at.UserError, match=r"has no controller\.json"):
        make_controller("policy", ("lr",), tmp_path)
    file = tmp_path / weights_file.FILE
    good = {"autotune_controller": 1, "weights": {"lr": {"bias": 1}}}
    for text, says in {
        "{": "cannot be read",
        "[]": "is not a policy that this version reads",
        json.dumps({**good, "autotune_controller": 9}): "is not a policy",
        json.dumps({**good, "weights": [1]}): "weights must be numbers",
        json.dumps({**good, "weights": {"lr": {"los": 1}}}): "did you mean 'loss'",
        json.dumps({**good, "weights": {"rl": {}}}): "unknown knob 'rl'",
        json.dumps({**good, "weights": {"lr": {"bias": "1"}}}): "must be a number, got '1'",
        json.dumps({**good, "weights": {"lr": {"bias": math.inf}}}): "must be finite",
    }.items():
        file.write_text(text)
        with pytest.raises(at.UserError, match=says):
            make_controller("policy", ("lr",), file)
    file.write_text(json.dumps(good))
    made = make_controller("policy", ("lr",), tmp_path)
    assert isinstance(made, Linear)
    assert made.start == {"lr": {"bias": 1}}
    assert awr(np.ones((1, 11)), []).sum() == 11


# --- one flag for two policies --------------------------------------------------------------------


def test_a_start_serves_the_sampler_and_the_controller(fast_path: Path) -> None:
    space = problem(None)
    study(fast_path / "a", 12, controller="policy", sampler="random", experiment=space, seed=1)
    (fast_path / "bare").mkdir()
    shutil.copy(fast_path / "a" / weights_file.FILE, fast_path / "bare")
    study(fast_path / "plain", 12, sampler="random", experiment=space, seed=1)

    def manifest_of(name: str, source: str, **options: Any) -> dict[str, Any]:
        options = {"experiment": space, "seed": 2, "start_from": fast_path / source, **options}
        study(fast_path / name, 2, **options)
        return manifest.read(fast_path / name)

    both = {"sampler": "policy:elite", "controller": "policy"}
    found = manifest_of("both", "a", **both)
    assert found["start"]["version"] == 1
    assert found["start_controller"]["study"] == "steered"
    assert manifest_of("sampler", "a", sampler="policy:elite").keys() & {
        "start",
        "start_controller",
    } == {"start"}
    # Whichever finds nothing there begins afresh, and still does when the study is resumed.
    assert manifest_of("controller", "bare", **both)["start"] is None
    assert manifest_of("fresh", "plain", **both)["start_controller"] is None
    shutil.copy(fast_path / "a" / weights_file.FILE, fast_path / "plain")
    assert manifest_of("fresh", "plain", **both)["start_controller"] is None


def test_a_resumed_study_needs_the_controller_that_it_began_with_no_more(fast_path: Path) -> None:
    study(fast_path / "a", 12, controller="policy", seed=1)
    options = {"controller": "policy", "start_from": fast_path / "a", "seed": 2, "workers": 1}
    whole = study(fast_path / "whole", 8, **options)
    study(fast_path / "parts", 3, **options)
    (fast_path / "a" / weights_file.FILE).unlink()
    parts = study(fast_path / "parts", 8, **options)
    assert [t.changes for t in parts.trials] == [t.changes for t in whole.trials]
    assert json.loads((fast_path / "parts" / weights_file.FILE).read_text())["from"] == str(
        fast_path / "a"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "has neither a study nor a policy.json"),
        ({"controller": "regulator"}, "has neither a study nor a policy.json"),
        ({"controller": "policy"}, "has no controller.json"),
        (
            {"controller": "policy", "sampler": "policy:elite"},
            "has neither a study nor a policy.json",
        ),
    ],
)
def test_a_start_that_nothing_can_use_gets_one_clear_line(
    options: dict[str, Any], says: str, fast_path: Path
) -> None:
    (fast_path / "empty").mkdir()
    with pytest.raises(at.UserError, match=says) as caught:
        study(fast_path / "n", 2, start_from=fast_path / "empty", **options)
    assert "\n" not in str(caught.value)
    assert not (fast_path / "n").exists()


def test_a_study_does_not_begin_with_itself(fast_path: Path) -> None:
    study(fast_path / "a", 4, controller="policy")
    for place in (fast_path / "a", fast_path / "a" / weights_file.FILE):
        with pytest.raises(at.UserError, match="is the study's own folder"):
            study(fast_path / "a", 6, controller="policy", start_from=place)


def test_populations_are_named_like_other_controllers(fast_path: Path) -> None:
    mistakes = {
        "pbtt": "did you mean 'pbt'",
        "pbt(intervall=2)": "unknown argument of pbt 'intervall'; did you mean 'interval'",
        "pbt(space=1)": "unknown argument of pbt 'space'",
        "pbt(share=0.9)": "share must be more than 0 and at most 0.5 but got 0.9",
        "pbt(interval='2')": "controller \"pbt\\(interval='2'\\)\": ",
        "pbt(2)": "give its arguments by keyword",
        "pbt(knobs=['lrr'])": "unknown knob 'lrr'",
        "pb2": "controller 'pb2' was removed: .* can use pbt",
        "pb2(interval=2)": "controller 'pb2' was removed",
    }
    for text, says in mistakes.items():
        with pytest.raises(at.UserError, match=says) as caught:
            study(fast_path / "a", 2, controller=text, experiment=problem(None))
        assert "\n" not in str(caught.value)
    assert not (fast_path / "a").exists()


def test_a_population_takes_its_settings_by_name(fast_path: Path) -> None:
    experiment = problem(None)
    knob = next(iter(experiment.space.entries))
    text = f"pbt(interval=2.5, share=0.5, knobs=[{knob!r}])"
    made = _controller(text, experiment, 7)
    assert isinstance(made, Population)
    assert (made.interval, made.share, made.knobs, made.seed) == (2.5, 0.5, (knob,), 7)
    assert _controller(f"pbt(knobs=[{knob!r}], seed=3)", experiment, 7).seed == 3
    found = populations.study(fast_path / "a", 12, controller="pbt(interval=2.5, share=0.5)")
    saved_at = [t.origin.checkpoint.clock.train for t in found.trials if t.origin is not None]
    assert all(2.5 <= seconds < 3 for seconds in saved_at[:3]), "half of six, at the first look"
    assert all(5 <= seconds < 5.5 for seconds in saved_at[3:]), "and at the second"
    assert len(saved_at) == 6
    assert manifest.read(fast_path / "a")["controller"] == "pbt(interval=2.5, share=0.5)"
