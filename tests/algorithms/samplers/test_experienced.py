"""The sampler experienced: near what is known to be fast, and its own search where nothing fits."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from known_studies import SPACE, TARGET, ended, known, share

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.posterior import MOST
from autotune.algorithms.samplers.convergence import ConvergenceSampler
from autotune.algorithms.samplers.experienced import KNOWN_FIRST, ExperiencedSampler
from autotune.space.parameters import Choice, Float
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, Report, State, Target, Trial
from autotune.trial.values import point_key


def sampler(
    bests: tuple[float, ...] = (0.001, 0.03, 1.0),
    space: SearchSpace = SPACE,
    target: Target = TARGET,
    seed: int = 0,
) -> ExperiencedSampler:
    tasks = [known("x" * (i + 1), best) for i, best in enumerate(bests)]
    own = ConvergenceSampler(space, target, seed)
    return ExperiencedSampler(space, target, seed, CanonicalSpace(space), tasks, own)


def searched(search: ExperiencedSampler, best: float, count: int) -> list[Trial]:
    """Trials of a study, one after the other, each stopped when it is behind the best."""
    trials: list[Trial] = []
    for number in range(count):
        point = search.ask(number, trials)
        assert point is not None
        assert SPACE.check(point) == point
        cap = min((t.seconds / 100 for t in trials if t.state is State.REACHED), default=1.0)
        trials.append(ended(number, point, share(point, best), cap))
    return trials


def fastest(trials: list[Trial]) -> float:
    return min((t.seconds for t in trials if t.state is State.REACHED), default=100.0)


def diverged(number: int, point: Params) -> Trial:
    """A trial that ended after two reports, as its loss was no number any more."""
    reports = tuple(Report(i + 1, i + 1.0, {"acc": 0.1}) for i in range(2))
    return replace(ended(number, point, 1.0, 0.02), reports=reports, reason="diverged")


@pytest.mark.parametrize("seed", range(3))
def test_what_diverged_near_a_point_counts_against_it(seed: int) -> None:
    """The known studies are fast at rates at which this one diverges; elsewhere they are right."""
    search, trials = sampler((0.5, 1.0, 2.0), seed=seed), []
    for number in range(KNOWN_FIRST):
        point = search.ask(number, trials)
        fails = point["lr"] > 0.1
        trials.append(diverged(number, point) if fails else ended(number, point, share(point, 1.0)))
    late = [t.params["lr"] for t in trials[KNOWN_FIRST // 2 :] if t.params]
    assert sum(lr > 0.1 for lr in late) <= 4, "before: all of the last ten"
    assert statistics.median(late) > 0.003, "the known studies still say where below it"


@pytest.mark.parametrize("best", [0.001, 0.03, 1.0])
def test_a_few_trials_find_what_random_ones_do_not(best: float) -> None:
    found = [fastest(searched(sampler(seed=seed), best, 6)) for seed in range(4)]
    draws = [SPACE.sample(6, seed=seed) for seed in range(40)]
    random = [min(100.0, *(100 * share(p, best) for p in points)) for points in draws]
    assert statistics.geometric_mean(found) < 0.75 * statistics.geometric_mean(random)


def test_a_study_like_no_other_is_searched_as_without() -> None:
    """All known studies have their best rates elsewhere: at most a few trials are lost."""

    def hard(point: Params) -> float:
        return 0.1 if point["drop"] > 0.9 else 30.0

    search, trials = sampler((0.01, 0.02)), []
    for number in range(16):
        point = search.ask(number, trials)
        trials.append(ended(number, point, hard(point)))
    assert search.posterior(trials).none > 0.9
    rates = [math.log10(t.params["lr"]) for t in trials[6:]]
    assert max(rates) - min(rates) > 2, "proposals are spread over the space again"


def test_points_are_repeatable_and_those_of_a_resumed_study_equal() -> None:
    trials = searched(sampler(), 0.03, KNOWN_FIRST + 6)
    assert [t.params for t in searched(sampler(), 0.03, KNOWN_FIRST + 6)] == [
        t.params for t in trials
    ]
    for place in (5, KNOWN_FIRST - 1, KNOWN_FIRST, KNOWN_FIRST + 4):
        assert sampler().ask(place, trials[:place]) == trials[place].params
    assert len({repr(t.params) for t in trials}) == len(trials)


def test_predictions_are_kept_of_the_pool_and_of_tried_points_only() -> None:
    search = sampler()
    points = SPACE.sample(MOST + 5, seed=7)
    trials = [ended(i, point, share(point, 0.03)) for i, point in enumerate(points)]
    search.posterior(trials)
    assert len(search._seen) == MOST, "further trials are not looked at"
    pool, _ = search._pool_of(trials)
    asked = {repr(search.ask(number, trials)) for number in range(len(trials), len(trials) + 8)}
    assert len(asked) > 1
    assert search._seen.keys() <= {point_key(point) for point in (*pool, *points)}


def test_where_all_points_were_tried_the_own_search_goes_on() -> None:
    space = SearchSpace({"lr": Choice((0.001, 0.03)), "drop": Choice((0.2, 0.5))})
    search = sampler((0.03,), space)
    points = [{"lr": lr, "drop": drop} for lr in (0.001, 0.03) for drop in (0.2, 0.5)]
    trials = [ended(i, point, share(point, 0.03)) for i, point in enumerate(points)]
    known = search.posterior(trials)
    assert search._best_point(known, trials[:2], trials[:2]) in points[2:]
    assert search._best_point(known, trials, trials) is None
    asked = [search.ask(number, trials) for number in range(4, 12)]
    assert all(point in points for point in asked)
    assert len({repr(point) for point in asked}) > 1


def test_trials_that_run_at_the_same_time_differ() -> None:
    search, trials = sampler((0.03,)), []
    for number in range(4):
        point = search.ask(number, trials)
        trials.append(Trial(number, point, point, attempts=1))
    assert len({repr(t.params) for t in trials}) == 4


def test_what_the_other_studies_do_not_say_stays_as_in_the_baseline() -> None:
    space = SearchSpace({**SPACE.entries, "own": Float(0, 1), "kind": Choice(("a", "b", "c"))})
    baseline = {"lr": 0.1, "drop": 0.5, "own": 0.123, "kind": "b"}
    first = Trial(0, baseline, baseline, kind="baseline", attempts=1)
    search, found = sampler((0.03,), space), []
    for number in range(1, 7):
        found.append(search.ask(number, [first]))
        assert space.check(found[-1]) == found[-1]
    kept = [p for p in found if p["own"] == 0.123 and p["kind"] == "b"]
    assert kept, "points of other studies are completed by the baseline"


def test_a_published_setting_is_proposed_where_it_is_expected_to_be_fast() -> None:
    """The known study tried nothing near its best rate; somebody published one that is."""
    far = known("x", 0.03)
    task = far.subset([i for i, p in enumerate(far.points) if p["drop"] > 0.4])
    own = ConvergenceSampler(SPACE, TARGET, 0)
    about = SPACE, TARGET, 0, CanonicalSpace(SPACE), [task], own
    point = {"lr": 0.03, "drop": 0.2}
    pool, _ = ExperiencedSampler(*about, published=[point])._pool_of([])
    assert point in pool
    assert point not in ExperiencedSampler(*about)._pool_of([])[0]


def test_without_a_target_value_places_count() -> None:
    target = Target("acc", limit=100.0)

    def completed(number: int, point: Params) -> Trial:
        value = 1 - share(point, 0.03)
        reports = tuple(Report(i + 1, 25.0 * (i + 1), {"acc": value}) for i in range(3))
        return Trial(
            number, point, point, state=State.COMPLETED, seconds=75.0, reports=reports, ended_at=1.0
        )

    search, trials = sampler(target=target), []
    for number in range(8):
        trials.append(completed(number, search.ask(number, trials)))
    values = [t.reports[-1].metrics["acc"] for t in trials]
    draws = [max(1 - share(p, 0.03) for p in SPACE.sample(8, seed=s)) for s in range(30)]
    assert max(values) > statistics.median(draws)
