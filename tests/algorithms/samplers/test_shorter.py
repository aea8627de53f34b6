"""The baseline with shorter schedules: which points there are, and when they are proposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sims import simulate

import autotune as at
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.samplers.shorter import ShorterFirst, shorter
from autotune.backends.simulator import SimCurve, SimPoint
from autotune.space.parameters import Choice, Fixed, Float, Int
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, State, Trial

LR = Float(1e-3, 1.0, log=True)
SPACE = SearchSpace({"lr": LR, "horizon": Float(10.0, 80.0, log=True)})
CANONICAL = CanonicalSpace(SPACE, {"horizon": "epochs"})
KNOWN = {"lr": 0.1, "horizon": 40.0}


class Other:
    """A sampler that always proposes the same."""

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        return {"lr": 0.5, "horizon": 50.0}


def trial(number: int, params: Params, state: State, kind: str = "trial") -> Trial:
    return Trial(number, {}, params, kind=kind, state=state, seconds=1.0)


@pytest.mark.parametrize(
    ("name", "entry", "length", "shorter_ones"),
    [
        ("epochs", Float(10.0, 80.0), 40.0, [28.0, 20.0]),
        ("num_epochs", Int(5, 90), 30, [21, 15]),
        ("num_train_epochs", Int(1, 3), 3, [2]),
        ("max_epochs", Int(1, 3), 1, []),
        ("epochs", Float(25.0, 80.0), 40.0, [28.0]),
        ("epochs", Int(10, 90, step=10), 20, [10]),
        ("epochs", Int(10, 90, step=10), 30, [20]),
        ("epochs", Int(0, 5), 1, []),
        ("epochs", Int(1, 64, power_of_two=True), 32, [16]),
        ("epochs", Choice([10, 20, 40]), 40, [20]),
        ("epochs", Choice(["long", 20, 10]), 20, [10]),
        ("epochs", Choice(["long", 20, 10]), "long", []),
        ("horizon", Float(10.0, 80.0), 40.0, []),
    ],
)
def test_lengths_lie_in_the_space_and_differ(
    name: str, entry: Any, length: Any, shorter_ones: list[float]
) -> None:
    space = CanonicalSpace(SearchSpace({"lr": LR, name: entry}))
    found = shorter(space, {"lr": 0.1, name: length})
    assert found == [{"lr": 0.1, name: value} for value in shorter_ones]
    assert all(space.space.check(point) == point for point in found)


def test_a_fixed_length_or_one_that_does_not_exist_beside_the_baseline_is_left_alone() -> None:
    fixed = SearchSpace({"lr": LR, "epochs": Fixed(30)})
    assert shorter(CanonicalSpace(fixed), {"lr": 0.1}) == []
    entries = {"kind": Choice(["a", "b"]), "epochs": Int(1, 90, when={"kind": "b"})}
    space = CanonicalSpace(SearchSpace(entries))
    assert shorter(space, {"kind": "a"}) == []
    assert shorter(space, {"kind": "b", "epochs": 10})[0] == {"kind": "b", "epochs": 7}


def test_points_that_the_conditions_or_constraints_of_the_space_refuse_are_left_out() -> None:
    averaged = {"epochs": Int(1, 90), "swa": Float(0, 1, when={"epochs": (42, 60)})}
    space = CanonicalSpace(SearchSpace(averaged))
    assert shorter(space, {"epochs": 60, "swa": 0.5}) == [{"epochs": 42, "swa": 0.5}]
    entries = {"epochs": Int(1, 90), "warmup": Int(0, 40)}
    longer = at.Constraint("warmup < epochs", lambda config: config["warmup"] < config["epochs"])
    space = CanonicalSpace(SearchSpace(entries, constraints=(longer,)))
    assert shorter(space, {"epochs": 60, "warmup": 35}) == [{"epochs": 42, "warmup": 35}]


def test_of_several_lengths_it_is_that_which_the_baseline_has() -> None:
    def length(optimizer: str) -> Int:
        return Int(1, 90, when={"optimizer": optimizer})

    entries = {"epochs:sgd": length("sgd"), "epochs:adamw": length("adamw")}
    space = CanonicalSpace(SearchSpace({"optimizer": Choice(["sgd", "adamw"]), **entries}))
    known = {"optimizer": "adamw", "epochs:adamw": 10}
    assert shorter(space, known) == [{**known, "epochs:adamw": n} for n in (7, 5)]


def test_what_is_shorter_than_one_that_missed_the_target_is_not_proposed() -> None:
    baseline = trial(0, KNOWN, State.REACHED, "baseline")
    sampler, half = ShorterFirst(CANONICAL, Other()), {"lr": 0.1, "horizon": 20.0}
    for state, then in ((State.REACHED, half), (State.CENSORED, Other().ask(2, []))):
        longer = trial(1, {"lr": 0.1, "horizon": 28.0}, state)
        assert sampler.ask(2, [baseline, longer]) == then


def test_they_are_proposed_once_each_and_then_the_other_sampler_is_asked() -> None:
    sampler, trials = ShorterFirst(CANONICAL, Other()), list[Trial]()
    assert sampler.ask(0, []) == Other().ask(0, []), "there is no baseline"
    trials.append(trial(0, KNOWN, State.RUNNING, "baseline"))
    for number in (1, 2, 3):
        point = sampler.ask(number, trials)
        assert point is not None
        trials.append(trial(number, point, State.RUNNING))
    assert [t.params for t in trials[1:]] == [
        {"lr": 0.1, "horizon": 28.0},
        {"lr": 0.1, "horizon": 20.0},
        Other().ask(3, trials),
    ]


@pytest.mark.parametrize("state", [State.CENSORED, State.FAILED])
def test_a_baseline_that_missed_the_target_is_not_shortened(state: State) -> None:
    sampler = ShorterFirst(CANONICAL, Other())
    first = trial(0, KNOWN, state, "baseline")
    assert sampler.ask(1, [first]) == Other().ask(1, [first])
    arrived = replace(first, state=State.REACHED)
    assert sampler.ask(1, [arrived]) == {"lr": 0.1, "horizon": 28.0}
    assert sampler.ask(1, [replace(arrived, params=None)]) == Other().ask(1, []), "outside"


def _nothing(config: at.Config) -> Any:
    """Stands for a trainer where none is run."""


def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
    took = config["horizon"] / 10
    return SimCurve([SimPoint(i, i / 2, {"acc": min(i / 2 / took, 1.0)}) for i in range(21)])


@pytest.mark.parametrize(
    ("value", "sampler", "shortened"),
    [
        (1.0, "auto", True),
        (1.0, "experienced", True),
        (1.0, "convergence", True),
        (1.0, "widening", True),
        (1.0, "tpe", False),
        (1.0, "random", False),
        (None, "auto", False),
    ],
)
def test_the_usual_search_for_a_time_begins_with_them(
    value: float | None, sampler: str, shortened: bool, fast_path: Path
) -> None:
    """Without a value of the target a shorter schedule is not faster, but less training."""
    target = at.Target("acc", value, limit=10)
    experiment = at.Experiment(
        "short", _nothing, SPACE, target, baseline=KNOWN, canonical={"horizon": "epochs"}
    )
    options: dict[str, Any] = {"sampler": sampler, "pruner": "none"}
    found = simulate(experiment, fast_path, 6, curve, **options)
    lengths = [t.config["horizon"] for t in found.searched]
    assert lengths[0] == 40.0
    assert (lengths[1:3] == [28.0, 20.0]) == shortened
    again = simulate(experiment, fast_path, 8, curve, **options)
    assert [t.config["horizon"] for t in again.searched][:6] == lengths
    assert len({(t.config["lr"], t.config["horizon"]) for t in again.searched}) == 8
