"""The convergence sampler: valid points, the same for the same trials, and better than chance."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from sims import EVERYTHING, WIDE, simulate, wide
from sims import learning as learn

from autotune.algorithms.samplers.convergence import ConvergenceSampler, noise_scale
from autotune.algorithms.samplers.elite import learned_policy
from autotune.space.parameters import Float
from autotune.space.search_space import SearchSpace
from autotune.trial import Report, State, Target, Trial

TARGET = Target("acc", 0.9, limit=10.0)


def ended(number: int, params: dict, seconds: float) -> Trial:
    state = State.REACHED if seconds < 10 else State.CENSORED
    spent = min(seconds, 10.0)
    reports = (Report(1, spent, {"acc": 0.9 * min(10 / seconds, 1)}),)
    return Trial(number, {}, params, state=state, reason="x", seconds=spent, reports=reports)


def run(space: SearchSpace, seconds: object, count: int, seed: int) -> list[Trial]:
    sampler, trials = ConvergenceSampler(space, TARGET, seed), []
    for number in range(count):
        point = sampler.ask(number, trials)
        assert space.check(point) == point
        trials.append(ended(number, point, seconds(point)))
    return trials


def test_points_are_valid_in_any_space_and_repeatable() -> None:
    found = run(EVERYTHING, lambda p: 1 + 20 * abs(math.log10(p.get("lr.peak", 1)) + 1), 30, seed=1)
    again = run(EVERYTHING, lambda p: 1 + 20 * abs(math.log10(p.get("lr.peak", 1)) + 1), 30, seed=1)
    assert [t.params for t in found] == [t.params for t in again]
    assert len({str(t.params) for t in found}) == 30


def test_a_resumed_sampler_proposes_what_the_old_one_would_have() -> None:
    trials = run(WIDE, lambda p: 1 + 3 * abs(math.log10(p["lr.peak"]) + 1), 20, seed=2)
    fresh = ConvergenceSampler(WIDE, TARGET, 2)
    assert fresh.ask(19, trials[:19]) == trials[19].params
    assert fresh.ask(20, trials) != fresh.ask(21, trials)


def test_the_distribution_follows_the_fastest() -> None:
    space = SearchSpace({"x": Float(0, 1)})
    places = [i / 23 for i in range(24)]
    trials = [ended(i, {"x": x}, 1 + 8 * abs(x - 0.8)) for i, x in enumerate(places)]
    found = learned_policy(space, TARGET, trials)
    assert found is not None
    assert 0.4 < found.means["x"] < 1.2, "the normal score of 0.8 is 0.84"


def test_it_finds_what_random_points_do_not() -> None:
    space = SearchSpace({f"x{i}": Float(0, 1) for i in range(6)})

    def seconds(point: dict) -> float:
        return 1 + 12 * sum((x - 0.3 - 0.1 * i) ** 2 for i, x in enumerate(point.values()))

    best = [min(t.seconds for t in run(space, seconds, 60, seed)) for seed in range(4)]
    chance = [min(seconds(p) for p in space.sample(60, seed)) for seed in range(4)]
    assert statistics.mean(best) < 1 + 0.5 * (statistics.mean(chance) - 1)


def test_it_starts_around_the_baseline() -> None:
    space = SearchSpace({f"x{i}": Float(0, 1) for i in range(40)})
    given = dict.fromkeys(space.parameters(), 0.5)
    baseline = Trial(0, given, given, kind="baseline")
    sampler = ConvergenceSampler(space, TARGET, 0)
    points = [sampler.ask(number, [baseline]) for number in range(1, 31)]
    away = [statistics.mean(abs(v - 0.5) for v in point.values()) for point in points]
    near = sum(distance < 0.2 for distance in away)  # evenly drawn it is a quarter, on average
    assert 5 < near < 25


def test_a_whole_study_on_a_virtual_clock(fast_path: Path) -> None:
    result = simulate(wide(), fast_path, 40, learn, workers=4, sampler="convergence")
    assert len(result.trials) == 40
    assert result.best.seconds < result.baseline.seconds


def test_a_trial_stopped_early_is_trusted_less() -> None:
    late, early = (Trial(1, {}, state=State.CENSORED, seconds=s) for s in (10.0, 1.0))
    reached = Trial(1, {}, state=State.REACHED, seconds=1.0)
    assert noise_scale(reached, 10.0) == noise_scale(late, 10.0) == 1.0
    assert noise_scale(early, 10.0) > 2.0
    assert noise_scale(early, 0.0) == 1.0  # a target that was met before any training
    assert noise_scale(Trial(1, {}, state=State.CENSORED), 10.0) < 20.0  # finite at no time at all
