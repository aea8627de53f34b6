"""Population-based bandits: the model against functions that are known, and its cost."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from populations import FOUR, TARGET, curve, running

from autotune.algorithms.controllers.pb2 import (
    Gains,
    at_share,
    confident,
    fit,
    gains,
    highest,
    kernel,
    pb2,
    share_of,
)
from autotune.algorithms.controllers.pbt import Situation
from autotune.algorithms.ranking.lineage import origin
from autotune.space.parameters import Choice, Float, Int, Parameter
from autotune.space.search_space import SearchSpace
from autotune.trial import Checkpoint, Clock

NUMBERS: dict[str, Parameter] = {"lr": Float(1e-3, 1.0, log=True)}


def seen(count: int, peak: float, noise: float, seed: int, drift: float = 0.0) -> Gains:
    """Gains that are greatest where the knobs are `peak`, which wanders by `drift` a look."""
    random = np.random.default_rng(seed)
    time = np.sort(random.integers(0, 10, count)).astype(float)
    knobs = random.random((count, 2))
    at = peak + drift * time[:, None]
    gain = np.exp(-((knobs - at) ** 2).sum(1) / 0.1) + noise * random.standard_normal(count)
    return Gains(time, knobs, gain)


@pytest.mark.parametrize("peak", [0.2, 0.5, 0.8])
def test_the_best_of_a_known_function_is_found(peak: float) -> None:
    """In the mean, without a prize for what is not known."""
    model = fit(seen(60, peak, 0.02, 1))
    grid = np.stack(np.meshgrid(*2 * (np.linspace(0, 1, 41),)), -1).reshape(-1, 2)
    mean, deviation = model.predict(10.0, grid)
    assert grid[mean.argmax()] == pytest.approx([peak, peak], abs=0.1)
    assert (deviation < 1.0).all()
    chosen = highest(model, 10.0, [], np.random.default_rng(0))
    assert chosen == pytest.approx([peak, peak], abs=0.25)


def test_what_was_seen_long_ago_counts_less() -> None:
    """Where the best moves, the model forgets, and follows it; where it stays, it does not."""
    moving = fit(seen(100, 0.1, 0.01, 2, drift=0.08))
    still = fit(seen(100, 0.5, 0.3, 2))
    assert moving.forgetting > still.forgetting == 0.0
    chosen = highest(moving, 10.0, [], np.random.default_rng(0))
    assert chosen == pytest.approx([0.9, 0.9], abs=0.25)


def test_the_kernel_is_its_formula() -> None:
    time, knobs = np.array([0.0, 3.0]), np.array([[0.1, 0.2], [0.4, 0.6]])
    found = kernel(time, knobs, time, knobs, 0.5, 0.2)
    assert found.diagonal() == pytest.approx([1.0, 1.0])
    assert found[0, 1] == pytest.approx(np.exp(-0.25 / (2 * 0.25)) * 0.8**1.5)


def test_the_model_interpolates_and_is_unsure_elsewhere() -> None:
    told = seen(30, 0.5, 0.0, 3)
    model = fit(replace(told, knobs=told.knobs * 0.4))
    standard = (told.gain - told.gain.mean()) / told.gain.std()
    mean, near = model.predict(told.time[-1], told.knobs[-1:] * 0.4)
    assert mean[0] == pytest.approx(standard[-1], abs=0.3)
    assert model.predict(told.time[-1], np.array([[1.0, 1.0]]))[1][0] > 2 * near[0]


def test_trials_at_the_same_time_try_different_things() -> None:
    """What is being tried is surer, not better: the next one goes elsewhere."""
    model = fit(seen(6, 0.5, 0.0, 4))
    first = highest(model, 10.0, [], np.random.default_rng(0))
    tried = model.also(10.0, first[None, :])
    before, after = (m.predict(10.0, first[None, :]) for m in (model, tried))
    assert after[0] == pytest.approx(before[0], abs=1e-6)
    assert after[1] < before[1]
    second = highest(model, 10.0, [first.tolist()], np.random.default_rng(0))
    assert np.linalg.norm(second - first) > 0.05


def test_gains_are_told_once() -> None:
    """A fork has only gained what it gained by itself."""
    parent = running(0, [0.1, 0.2, 0.3, 0.5], saved=1.0)  # at 0.5, 1, 1.5 and 2 seconds
    came = origin(parent, Checkpoint(20, "x", Clock(train=1.0)), 3, {"lr": 0.1, "width": 2})
    reports = (*came.reports, *curve([0, 0, 0.4, 0.7])[2:])
    child = replace(parent, number=4, params=None, origin=came, reports=reports)
    told = gains(Situation(parent, [parent, child], TARGET, 1.0, 2), NUMBERS)
    assert told.time.tolist() == [1.0, 1.0]
    assert told.gain == pytest.approx([0.3, 0.5])
    assert told.knobs[:, 0] == pytest.approx([share_of(NUMBERS["lr"], lr) for lr in (0.01, 0.1)])
    nothing = gains(Situation(parent, [], TARGET, 1.0, 2), NUMBERS)
    assert nothing.knobs.shape == (0, 1)


def test_without_gains_numbers_move_by_chance() -> None:
    situation = Situation(FOUR[3], FOUR, TARGET, 1.0, 1)
    found = {confident(situation, NUMBERS, Random(seed))["lr"] for seed in range(40)}
    assert {0.032, 0.048} <= {round(lr, 6) for lr in found}


def test_choices_change_by_chance_and_numbers_by_the_model() -> None:
    trials = [
        replace(t, params={"lr": (n + 1) / 100, "o": "a"})
        for n, t in enumerate(running(n, [0.1, 0.1, 0.2, 0.1 * n + 0.2]) for n in range(4))
    ]
    parameters = {**NUMBERS, "o": Choice(["a", "b"])}
    situation = Situation(trials[3], trials, TARGET, 1.0, 2)
    found = [confident(situation, parameters, Random(seed)) for seed in range(40)]
    assert {f["o"] for f in found} == {"a", "b"}
    assert confident(situation, parameters, Random(7)) == found[7]
    fork = pb2(SearchSpace(parameters), TARGET, interval=1.0)
    assert fork.explore is confident


@pytest.mark.parametrize(
    "parameter",
    [Float(0.01, 1, log=True), Float(-1, 2), Int(16, 512, power_of_two=True), Int(1, 9, step=2)],
)
def test_a_share_of_the_range_is_a_value_and_back(parameter: Float | Int) -> None:
    assert [at_share(parameter, x) for x in (0.0, 1.0)] == [parameter.low, parameter.high]
    for share in np.linspace(0, 1, 23):
        value = at_share(parameter, float(share))
        assert not parameter.check(value)
        assert at_share(parameter, share_of(parameter, value)) == pytest.approx(value)


def test_a_suggestion_costs_less_than_a_milestone() -> None:
    """Figures are in docs/population.md; here only that nothing is off by an order."""
    random = np.random.default_rng(0)
    told = seen(128, 0.5, 0.1, 5)
    took = []
    for _ in range(5):
        begin = time.thread_time()
        highest(fit(told), 10.0, random.random((8, 2)).tolist(), random)
        took.append(time.thread_time() - begin)
    assert statistics.median(took) < 2.0
