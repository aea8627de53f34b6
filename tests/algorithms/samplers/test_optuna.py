"""Every Optuna sampler behaves in the same way: a new one needs only a row in the table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from sims import BASELINE, METRIC, WIDE, simulate, wide
from sims import learning as learn

from autotune.algorithms.samplers.optuna import OptunaSampler
from autotune.algorithms.samplers.optuna_names import SAMPLERS, make_optuna_sampler
from autotune.errors import UserError
from autotune.evaluation.export.optuna_study import export
from autotune.space.search_space import Choice, Float, Int, SearchSpace
from autotune.trial import Report, State, Target, Trial

TARGET = Target(METRIC, 0.9, limit=5)
CONFORMANCE = dict.fromkeys(SAMPLERS, 12) | {
    "optuna.samplers.TPESampler(n_startup_trials=3, multivariate=True)": 12,
    "optuna.samplers.CmaEsSampler(n_startup_trials=2)": 12,
}
CONFORMANCE["gp"] = 12  # it fits its model from the eleventh trial on


def ended(number: int, params: dict[str, Any]) -> Trial:
    """A trial that reached, was censored or failed, in turn."""
    state = (State.REACHED, State.CENSORED, State.CENSORED, State.FAILED)[number % 4]
    seconds = 1 + abs(math.log10(params["lr.peak"]) + 1)
    reports = (Report(1, seconds, {METRIC: 0.9 / seconds}),)
    return Trial(number, {}, params, state=state, reason="x", seconds=seconds, reports=reports)


def studied(name: str, seed: int, count: int, earlier: Sequence[Trial] = ()) -> list[Trial]:
    sampler, trials = OptunaSampler(name, WIDE, TARGET, seed), list(earlier)
    while len(trials) < count:
        number = len(trials)
        trials.append(ended(number, dict(sampler.ask(number, tuple(trials)))))
    return trials


@pytest.mark.parametrize(("name", "count"), CONFORMANCE.items(), ids=CONFORMANCE)
class TestConformance:
    def test_points_are_valid_and_the_same_for_the_same_seed(self, name: str, count: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first = studied(name, 1, count)
        for trial in first:
            assert WIDE.check(trial.params or {}) == trial.params
            WIDE.config(trial.params or {})
        assert [t.params for t in studied(name, 1, count)] == [t.params for t in first]
        assert [t.params for t in studied(name, 2, count)] != [t.params for t in first]


TOLD = {name: count for name, count in CONFORMANCE.items() if name != "random"}  # it looks at none


@pytest.mark.parametrize(("name", "count"), TOLD.items(), ids=TOLD)
class TestWhatTheyObserve:
    def test_a_resumed_sampler_gets_all_trials_and_goes_on(self, name: str, count: int) -> None:
        before = studied(name, 1, count - 1)
        sampler = OptunaSampler(name, WIDE, TARGET, 1)
        point = sampler.ask(count - 1, before)
        assert WIDE.check(point) == point
        known = sampler._study.get_trials(deepcopy=False)[:-1]
        assert [t.user_attrs["autotune.trial"] for t in known] == list(range(count - 1))
        for trial, frozen in zip(before, known, strict=True):
            score = TARGET.score(trial)
            assert frozen.state is (TrialState.FAIL if score is None else TrialState.COMPLETE)
            assert frozen.value == score
            if trial.state is State.CENSORED:
                assert frozen.value != trial.seconds
                assert frozen.value >= TARGET.limit

    def test_running_and_given_trials_are_known(self, name: str, count: int) -> None:
        sampler = OptunaSampler(name, WIDE, TARGET, 1)
        baseline = Trial(0, {}, BASELINE, kind="baseline")
        outside = Trial(1, {"lr": 3}, None)
        first = sampler.ask(2, [baseline, outside])
        states = [t.state for t in sampler._study.get_trials(deepcopy=False)]
        assert states == [TrialState.RUNNING] * 2
        running = Trial(2, {}, first)
        sampler.ask(3, [replace(baseline, state=State.REACHED, seconds=2.0), outside, running])
        seen_trials = sampler._study.get_trials(deepcopy=False)
        assert [(t.state, t.value) for t in seen_trials] == [
            (TrialState.COMPLETE, 2.0),
            (TrialState.RUNNING, None),
            (TrialState.RUNNING, None),
        ]
        assert seen_trials[1].params.keys() == first.keys()


@pytest.mark.parametrize("name", ["cmaes", "nsga2", "qmc", "tpe", "gp"])
def test_a_rank_that_changes_costs_no_sampler_what_it_has_learned(name: str) -> None:
    """Where it cost CMA-ES its distribution, it began in the middle again after every race."""
    sampler, trials = OptunaSampler(name, WIDE, TARGET, 1), list[Trial]()
    for number in range(12):
        trials.append(ended(number, dict(sampler.ask(number, trials))))
    learned = sampler._study
    trials[8] = replace(trials[8], seconds=trials[8].seconds + 1)
    sampler.ask(12, trials)
    values = {t.value for t in sampler._study.get_trials(deepcopy=False)}
    observed_again = TARGET.score(trials[8]) in values
    assert observed_again == (name in ("tpe", "gp")), "what looks at all trials sees the new time"
    assert (sampler._study is learned) == (not observed_again), (
        "what has a state of its own keeps it"
    )


def test_the_global_random_state_is_left_alone() -> None:
    import random

    import numpy as np

    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    studied("tpe", 1, 12)
    after = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    assert before == after


def test_a_trial_is_observed_once_however_often_it_is_passed() -> None:
    sampler = OptunaSampler("tpe", WIDE, TARGET, 1)
    trials: list[Trial] = []
    for number in range(6):
        trials.append(ended(number, dict(sampler.ask(number, trials))))
        sampler.ask(number + 100, trials)
    observed = sampler._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    assert len(observed) == sum(TARGET.score(t) is not None for t in trials)


class Unread(Sequence[Trial]):
    """Trials that must not be looked at."""

    def __len__(self) -> int:
        raise AssertionError("counted")

    def __getitem__(self, place: Any) -> Any:
        raise AssertionError("read")


def test_a_random_draw_looks_at_no_trial_and_is_the_same_after_a_resume() -> None:
    ahead = OptunaSampler("random", WIDE, TARGET, 1)
    drawn = [ahead.ask(number, Unread()) for number in range(30)]
    resumed = OptunaSampler("random", WIDE, TARGET, 1)
    assert [resumed.ask(number, Unread()) for number in (20, 5)] == [drawn[20], drawn[5]]
    assert len({repr(point) for point in drawn}) == 30


def test_a_sampler_of_ones_own_is_taken_as_it_is(fast_path: Path) -> None:
    sampler = optuna.samplers.RandomSampler(seed=9)
    result = simulate(wide(), fast_path, 4, learn, sampler=sampler)
    assert len(result.trials) == 4


def test_tpe_learns_more_than_chance(fast_path: Path) -> None:
    def best(sampler: str) -> float:
        found = []
        for seed in range(3):
            folder = fast_path / f"{sampler}-{seed}"
            result = simulate(wide(), folder, 40, learn, sampler=sampler, seed=seed, workers=2)
            found += [t.seconds for t in result.trials if t.state is State.REACHED][-3:]
        return min(found)

    assert best("tpe") <= best("random") * 1.1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tpee", "unknown sampler 'tpee'; did you mean 'tpe'? (allowed: auto, cmaes, convergence"),
        ("convergence()", "sampler 'convergence' takes no arguments"),
        ("policy(weights='a.npz')", ": policy:FILE.npz has weights of your own"),
        ("policy:a.json", "sampler must be policy:FILE.npz, or policy:elite, but got"),
        ("t p e", "unknown sampler 't p e'"),
        ("", "unknown sampler ''"),
        ("optuna.samplers.TPSampler", "sampler 'optuna.samplers.TPSampler': module"),
        ("optuna.nowhere.TPESampler", "No module named 'optuna.nowhere'"),
        ("optuna.Study", "sampler 'optuna.Study' is not an Optuna sampler"),
        ("optuna.samplers.TPESampler(10)", "give its arguments by keyword"),
        ("optuna.samplers.TPESampler(gamma=min)", "arguments must be plain values"),
        (
            "optuna.samplers.TPESampler(n_startup_trial=3)",
            "unknown argument of optuna.samplers.TPESampler 'n_startup_trial'; did you mean "
            "'n_startup_trials'?",
        ),
        ("optuna.samplers.GridSampler", "missing 1 required positional argument"),
        ("optuna.samplers.BaseSampler", "abstract"),
        ("optuna.samplers.NSGAIISampler(population_size=1)", "population_size"),
        ("optuna.samplers.TPESampler(**{})", "unknown argument"),
        ("optuna.samplers.TPESampler(seed={[]: 1})", "arguments must be plain values"),
        ("1.5", "sampler '1.5'"),
        ("lambda: 1", "sampler"),
    ],
)
def test_wrong_samplers_are_the_users_mistake(text: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        make_optuna_sampler(text, 0)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


# --- export -----------------------------------------------------------------------------------


def test_export_gives_values_only_to_the_reached(tmp_path: Path) -> None:
    params = {**BASELINE, "lr.peak": 0.1}
    reports = (Report(10, 1.0, {METRIC: 0.5}), Report(20, 2.0, {METRIC: 0.7, "x": 1.0}))
    states = [*(s for s in State if s is not State.COMPLETED), State.CENSORED]
    trials = [
        Trial(n, {}, params, state=s, reason="why", seconds=2.0, reports=reports)
        for n, s in enumerate(states)
    ]
    trials.append(Trial(len(trials), {"lr": 1}, None, state=State.REACHED, seconds=1.0))
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    assert export(trials, WIDE, TARGET, url, "mine") == len(states)
    study = optuna.load_study(study_name="mine", storage=url)
    assert study.direction is optuna.study.StudyDirection.MINIMIZE
    for trial, frozen in zip(trials, study.trials, strict=False):
        assert frozen.value == trial.time_to_target
        assert frozen.user_attrs["autotune.trial"] == trial.number
        assert frozen.user_attrs["state"] == str(trial.state)
        assert frozen.intermediate_values == {10: 0.5, 20: 0.7}
        if trial.state is State.CENSORED:
            assert frozen.state is TrialState.PRUNED
            assert frozen.user_attrs["censored_at_seconds"] == 2.0
    assert study.best_trial.user_attrs["autotune.trial"] == states.index(State.REACHED)
    with pytest.raises(UserError, match="already holds an Optuna study named 'mine'"):
        export(trials, WIDE, TARGET, url, "mine")
    with pytest.raises(UserError, match="cannot open the Optuna storage"):
        export(trials, WIDE, TARGET, "nosql://x", "mine")
    with pytest.raises(UserError, match="cannot open the Optuna storage"):
        export(trials, WIDE, TARGET, f"sqlite:///{tmp_path}/no/such.db", "mine")


def test_export_of_a_study(fast_path: Path) -> None:
    result = simulate(wide(), fast_path, 8, learn)
    url = f"sqlite:///{fast_path / 'optuna.db'}"
    assert export(result.trials, WIDE, result.target, url, "mine") == 8
    study = optuna.load_study(study_name="mine", storage=url)
    best = result.best
    assert best is not None
    assert study.best_value == best.seconds


def test_widening_starts_around_the_baseline_and_moves_away_from_it() -> None:
    space = SearchSpace({f"x{i}": Float(0, 1) for i in range(40)})
    given = {f"x{i}": 0.5 for i in range(40)}
    baseline = Trial(0, space.config(given), given, kind="baseline")
    sampler = OptunaSampler("widening", space, Target("acc", 1, limit=1), seed=3)
    kept = []
    trials = [baseline]
    for number in range(1, 13):
        point = sampler.ask(number, trials)
        assert space.check(point) == point
        kept.append(sum(value == 0.5 for value in point.values()))
        trials.append(Trial(number, space.config(point), point))
    assert kept[0] > 24
    assert sum(kept[:3]) > sum(kept[7:10]) > 10
    assert kept[10:] == [0, 0]
    again = OptunaSampler("widening", space, Target("acc", 1, limit=1), seed=3)
    assert again.ask(4, trials[:4]) is not None
    assert sum(v == 0.5 for v in again.ask(5, trials[:5]).values()) == kept[4]


def test_widening_does_not_run_the_baseline_again() -> None:
    space = SearchSpace({"x": Float(0, 1), "y": Float(0, 1)})
    given = {"x": 0.5, "y": 0.5}
    trials = [Trial(0, given, given, kind="baseline")]
    for seed in range(10):
        sampler = OptunaSampler("widening", space, Target("acc", 1, limit=1), seed=seed)
        assert all(sampler.ask(number, trials) != given for number in range(1, 11))


@pytest.mark.parametrize(
    "space",
    [
        SearchSpace({"x": Choice(["a", "b"])}),
        SearchSpace({"x": Choice(["a", "b"]), "y": Int(1, 2), "z": Choice(["only"])}),
        SearchSpace({"x": Choice(["a"]), "y": Int(1, 512, power_of_two=True)}),
    ],
    ids=["one choice", "few points", "one free"],
)
def test_widening_does_not_draw_the_baseline_by_chance(space: SearchSpace) -> None:
    given = {n: {"x": "a", "y": 1, "z": "only"}[n] for n in space.parameters()}
    trials = [Trial(0, given, given, kind="baseline")]
    for seed in range(20):
        sampler = OptunaSampler("widening", space, Target("acc", 1, limit=1), seed=seed)
        points = [sampler.ask(number, trials) for number in range(1, 11)]
        assert given not in points
        assert all(space.check(point) == point for point in points)


def test_where_there_is_nothing_else_widening_draws_the_baseline() -> None:
    space = SearchSpace({"x": Choice(["a"])})
    trials = [Trial(0, {"x": "a"}, {"x": "a"}, kind="baseline")]
    sampler = OptunaSampler("widening", space, Target("acc", 1, limit=1), seed=0)
    assert sampler.ask(1, trials) == {"x": "a"}
