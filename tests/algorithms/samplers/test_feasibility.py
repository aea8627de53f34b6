"""Samplers that have seen what is infeasible ask for less of it."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from optuna.trial import TrialState
from sims import METRIC

from autotune.algorithms.samplers.convergence import ConvergenceSampler
from autotune.algorithms.samplers.feasibility import LIKELY, Feasible
from autotune.algorithms.samplers.optuna import OptunaSampler
from autotune.algorithms.samplers.optuna_names import SAMPLERS
from autotune.space.parameters import Float
from autotune.space.search_space import SearchSpace
from autotune.trial import Report, State, Target, Trial

TARGET = Target(METRIC, 0.9, limit=5)
SQUARE = SearchSpace({"x": Float(0, 1), "y": Float(0, 1)})


def tried(number: int, point: dict[str, float]) -> Trial:
    """Feasible where x + y is less than one; fastest not far from that."""
    if point["x"] + point["y"] >= 1:
        state = State.INFEASIBLE
        return Trial(number, point, point, state=state, reason="out of memory", attempts=1)
    seconds = 1 + 2 * math.dist((point["x"], point["y"]), (0.45, 0.4))
    reports = (Report(1, seconds, {METRIC: 0.95}),)
    return Trial(
        number,
        point,
        point,
        state=State.REACHED,
        reason="target",
        seconds=seconds,
        reports=reports,
        ended_at=float(number),
    )


def searched(sampler: Any, count: int, *, blind: bool = False) -> list[bool]:
    """Which of so many suggestions were infeasible."""
    trials: list[Trial] = []
    shown: list[Trial] = []
    while len(trials) < count:
        trials.append(tried(len(trials), dict(sampler.ask(len(trials), tuple(shown)))))
        failed = blind and trials[-1].state is State.INFEASIBLE
        shown.append(replace(trials[-1], state=State.FAILED) if failed else trials[-1])
    return [t.state is State.INFEASIBLE for t in trials]


def test_the_boundary_is_learned() -> None:
    random = np.random.default_rng(1)
    points = [{"x": float(x), "y": float(y)} for x, y in random.random((60, 2))]
    trials = [tried(i, p) for i, p in enumerate(points)]
    chances = Feasible(SQUARE).chances(trials, [{"x": 0.1, "y": 0.1}, {"x": 0.9, "y": 0.9}])
    assert chances[0] > LIKELY
    assert chances[1] < 1 - LIKELY


def test_where_nothing_was_infeasible_everything_is_possible() -> None:
    trials = [tried(0, {"x": 0.1, "y": 0.1})]
    assert Feasible(SQUARE).chances(trials, [{"x": 0.9, "y": 0.9}]).tolist() == [1.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tpe", "convergence"])
def test_fewer_and_fewer_suggestions_are_infeasible(name: str) -> None:
    """Over seeds: less at the end than at the beginning, and less than without being trials.

    Half of the space is beyond the boundary, and the fastest points are close to it.
    """

    def sampler(seed: int) -> Any:
        if name == "convergence":
            return ConvergenceSampler(SQUARE, TARGET, seed)
        return OptunaSampler(name, SQUARE, TARGET, seed)

    trials = [searched(sampler(seed), 60) for seed in range(5)]
    first = statistics.fmean(bad for run in trials for bad in run[:15])
    last = statistics.fmean(bad for run in trials for bad in run[-30:])
    blind = [searched(sampler(seed), 60, blind=True) for seed in range(5)]
    blind_mean = statistics.fmean(bad for run in blind for bad in run)
    assert last < 0.75 * first
    assert statistics.fmean(bad for run in trials for bad in run) < 0.75 * blind_mean


@pytest.mark.parametrize("name", sorted({*SAMPLERS} - {"random"}))  # which looks at no trial
def test_every_sampler_of_optunas_sees_infeasible_points(name: str) -> None:
    """The first infeasible trial comes late: what was trials without constraints then has them."""
    sampler = OptunaSampler(name, SQUARE, TARGET, 1)
    trials: list[Trial] = []
    for number in range(14):
        point = dict(sampler.ask(number, tuple(trials)))
        if number < 6:
            point = {"x": point["x"] / 3, "y": point["y"] / 3}
        trials.append(tried(number, point if number != 6 else {"x": 0.9, "y": 0.8}))
    sampler.ask(14, tuple(trials))
    known = sampler._study.get_trials(deepcopy=False)[:14]
    for trial, frozen in zip(trials, known, strict=True):
        bad = trial.state is State.INFEASIBLE
        assert frozen.constraints == {"feasible": 1.0 if bad else -1.0}
        assert frozen.state is TrialState.COMPLETE
        assert frozen.value == (2 * TARGET.limit if bad else trial.seconds)


def test_a_running_trial_becomes_infeasible_after_all_others_were_observed() -> None:
    sampler = OptunaSampler("gp", SQUARE, TARGET, 1)
    done = [tried(i, {"x": i / 30, "y": 0.1}) for i in range(11)]
    running = Trial(11, {}, {"x": 0.9, "y": 0.9}, attempts=1)
    sampler.ask(12, (*done, running))
    ended = tried(11, {"x": 0.9, "y": 0.9})
    later = Trial(12, {}, {"x": 0.2, "y": 0.1}, attempts=1)
    sampler.ask(13, (*done, ended, later))
    reached = tried(12, {"x": 0.2, "y": 0.1})
    assert SQUARE.check(sampler.ask(14, (*done, ended, reached)))
