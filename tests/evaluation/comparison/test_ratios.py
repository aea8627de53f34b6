"""Speedups with their intervals, and MLPerf's mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from autotune.algorithms.ranking.speedup import paired
from autotune.algorithms.ranking.speedup import speedup as ratio_of
from autotune.evaluation.comparison import Interval, Run, ratios, survival

TIMES = st.floats(0.1, 1e3)
FEW = settings(max_examples=40)


def runs(times, reached=True, seeds=None, **more) -> list[Run]:
    flags = [reached] * len(times) if isinstance(reached, bool) else reached
    seeds = seeds if seeds is not None else [None] * len(times)
    return [
        Run(f"r{i}", float(t), bool(f), seed=s, **more)
        for i, (t, f, s) in enumerate(zip(times, flags, seeds, strict=True))
    ]


@dataclass(frozen=True)
class Found:
    """A speedup with its interval."""

    ratio: float
    tau: float
    bound: str
    pairs: int
    interval: Interval | None


def speedup(own: list[Run], baseline: list[Run], seed: int = 0) -> Found | None:
    found = ratio_of(own, baseline)
    if found is None:
        return None
    interval = ratios.interval(found, seed)
    return Found(found.ratio, found.tau, found.bound, found.pairs, interval)


@FEW
@given(
    st.lists(st.tuples(TIMES, st.booleans()), min_size=1, max_size=8),
    st.lists(st.tuples(TIMES, st.booleans()), min_size=1, max_size=8),
)
def test_with_censoring_the_ratio_is_that_of_kaplan_meier_means(a, b) -> None:
    own, others = (runs(*zip(*drawn, strict=True)) for drawn in (a, b))
    found = ratio_of(own, others)
    samples = [survival.sample(*zip(*drawn, strict=True)) for drawn in (a, b)]
    tau = survival.common_horizon(samples)
    if found is None:
        assert not any(r.reached and r.seconds <= tau for r in (*own, *others))
        return
    assert found.tau == tau
    first, second = (float(survival.log_mean(s, tau)) for s in samples)
    assert math.log(found.ratio) == pytest.approx(second - first, abs=1e-9)


@FEW
@given(st.lists(TIMES, min_size=1, max_size=8), st.lists(TIMES, min_size=1, max_size=8))
def test_without_censoring_the_ratio_is_that_of_geometric_means(a, b) -> None:
    found = speedup(runs(a), runs(b))
    assert found is not None
    assert found.ratio == pytest.approx(stats.gmean(b) / stats.gmean(a))
    assert (found.bound, found.pairs) == ("", 0)
    assert (found.interval is None) == (min(len(a), len(b)) < 2)
    back = speedup(runs(b), runs(a))
    assert back is not None
    assert back.ratio == pytest.approx(1 / found.ratio)


@FEW
@given(st.lists(TIMES, min_size=3, max_size=8), st.lists(TIMES, min_size=3, max_size=8))
def test_the_interval_is_welchs_on_the_logarithm(a, b) -> None:
    found = speedup(runs(a), runs(b))
    logs = [np.log(b), np.log(a)]
    if min(np.std(x) for x in logs) < 1e-6:
        return
    theirs = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    width = theirs.high - theirs.low
    assert math.log(found.interval.low) == pytest.approx(theirs.low, abs=0.08 * width)
    assert math.log(found.interval.high) == pytest.approx(theirs.high, abs=0.08 * width)


@FEW
@given(st.lists(st.tuples(TIMES, TIMES), min_size=3, max_size=8), st.randoms())
def test_pairs_by_seed_give_the_interval_of_differences(pairs, random) -> None:
    order = list(range(len(pairs)))
    random.shuffle(order)
    own = runs([a for a, _ in pairs], seeds=range(len(pairs)))
    others = runs([pairs[i][1] for i in order], seeds=order)
    found = speedup(own, others)
    assert found.pairs == len(pairs)
    logs = np.log([b for _, b in pairs]) - np.log([a for a, _ in pairs])
    if np.std(logs) < 1e-6:
        return
    theirs = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    width = theirs.high - theirs.low
    assert math.log(found.interval.low) == pytest.approx(theirs.low, abs=0.08 * width)
    assert math.log(found.interval.high) == pytest.approx(theirs.high, abs=0.08 * width)


def test_pairing_takes_the_seeds_noise_out() -> None:
    """Seeds that are slow for both say nothing against either."""
    rng = np.random.default_rng(3)
    hard = rng.lognormal(0, 0.5, size=5)
    a, b = hard * rng.lognormal(0, 0.02, size=5), 1.2 * hard
    paired = speedup(runs(a, seeds=range(5)), runs(b, seeds=range(5)))
    not_paired = speedup(runs(a, seeds=range(5)), runs(b, seeds=range(5, 10)))
    assert (paired.pairs, not_paired.pairs) == (5, 0)
    assert paired.ratio == pytest.approx(not_paired.ratio)
    assert paired.interval.low > 1 > not_paired.interval.low


@pytest.mark.parametrize(
    ("own", "others", "pairs"),
    [
        ([1, 2, 3], [3, 2, 1], 3),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2, 4], 0),  # one run of each would be left out
        ([1], [1], 0),
        ([1, 1], [1, 2], 0),  # which of the two is the pair?
        ([None, 2], [None, 2], 0),
    ],
)
def test_which_runs_are_pairs(own, others, pairs: int) -> None:
    a, b = runs([1.0] * len(own), seeds=own), runs([2.0] * len(others), seeds=others)
    found = paired(a, b)
    assert len(found) == pairs
    assert all(x.seed == y.seed for x, y in found)


@pytest.mark.parametrize(("n", "is_paired"), [(3, False), (5, False), (5, True), (10, True)])
def test_95_percent_hold_the_truth_in_about_95_percent(n: int, is_paired: bool) -> None:
    """Lognormal times with a coefficient of variation near 20 %; the truth is 1.5."""
    rng, covered, narrow, tries = np.random.default_rng(n), 0, 0, 300
    seeds = range(n)
    for i in range(tries):
        a, b = rng.lognormal(0, 0.2, size=n), 1.5 * rng.lognormal(0, 0.2, size=n)
        others = runs(b, seeds=seeds if is_paired else None)
        found = speedup(runs(a, seeds=seeds), others, seed=i)
        covered += found.interval.low <= 1.5 <= found.interval.high
        first, second = rng.integers(0, n, (2, 400, n))
        logs = np.log(b)[first] - np.log(a)[first if is_paired else second]
        low, high = np.exp(np.quantile(np.mean(logs, axis=1), (0.025, 0.975)))
        narrow += low <= 1.5 <= high
    assert narrow < covered  # a percentile interval is too sure of itself
    assert 0.92 <= covered / tries <= 0.99


def test_a_baseline_that_does_not_arrive_gives_a_bound() -> None:
    found = speedup(runs([10.0, 10.0]), runs([40.0, 40.0], reached=False))
    assert (found.ratio, found.bound, found.tau) == (pytest.approx(4.0), ">=", 40.0)
    back = speedup(runs([40.0, 40.0], reached=False), runs([10.0, 10.0]))
    assert (back.ratio, back.bound) == (pytest.approx(0.25), "<=")
    mixed = speedup(runs([10.0, 40.0], [True, False]), runs([20.0, 40.0], [True, False]))
    assert mixed.bound == "~"
    assert mixed.ratio == pytest.approx(math.sqrt(2))


def test_runs_that_were_stopped_early_say_nothing_of_slower_ones() -> None:
    """One that was given up after 5 s against one that takes 20 s: who knows."""
    assert speedup(runs([5.0], reached=False), runs([20.0])) is None


def test_the_same_runs_and_seed_give_the_same_interval() -> None:
    a, b = runs([1.0, 2.0, 4.0]), runs([3.0, 5.0, 4.0])
    assert speedup(a, b, seed=7) == speedup(a, b, seed=7)
    assert speedup(a, b, seed=7) != speedup(a, b, seed=8)


def test_equal_times_give_an_interval_without_width() -> None:
    found = speedup(runs([2.0, 2.0]), runs([4.0, 4.0]))
    assert (found.interval.low, found.interval.high) == (pytest.approx(2), pytest.approx(2))


# --- MLPerf ---------------------------------------------------------------------------------------


def test_mlperfs_own_figures() -> None:
    """The reference convergence points of its rules: 15.75 and 20.75 epochs."""
    first = [16, 14, 16, 17, 16, 16, 15, 16, 15, 16]
    second = [20, 21, 21, 20, 22, 22, 21, 21, 20, 20]
    assert ratios.olympic_mean(first, [True] * 10) == 15.75
    assert ratios.olympic_mean(second, [True] * 10) == 20.75


@given(st.lists(TIMES, min_size=5, max_size=12), st.integers(0, 11))
def test_one_run_that_does_not_arrive_is_the_worst(times, lost: int) -> None:
    flags = [i != lost % len(times) for i in range(len(times))]
    rest = sorted(t for t, f in zip(times, flags, strict=True) if f)
    assert ratios.olympic_mean(times, flags) == pytest.approx(np.mean(rest[1:]))
    assert stats.trim_mean(times, 1 / len(times) + 1e-9) == pytest.approx(
        ratios.olympic_mean(times, [True] * len(times))
    )


def test_what_mlperf_would_not_score() -> None:
    assert ratios.olympic_mean([1.0] * 4, [True] * 4) is None
    assert ratios.olympic_mean([1.0] * 9, [True] * 7 + [False] * 2) is None
