"""Censored times: against lifelines and scipy, and what must hold of any runs at all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from autotune.evaluation.comparison import survival
from autotune.evaluation.comparison.survival import Sample, sample

# Few values, so that ties and ties between arrivals and censored runs come often.
TIMES = st.one_of(st.integers(1, 8).map(float), st.floats(0.01, 1e4))
RUNS = st.lists(st.tuples(TIMES, st.booleans()), min_size=1, max_size=12)
ARRIVED = st.lists(TIMES, min_size=1, max_size=10)
MANY, SOME = settings(max_examples=150), settings(max_examples=50)  # lifelines is slow


def made(runs: list[tuple[float, bool]]) -> Sample:
    return sample([t for t, _ in runs], [r for _, r in runs])


def arrived(times: list[float]) -> Sample:
    return sample(times, [True] * len(times))


def arrays(runs: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([t for t, _ in runs]), np.array([r for _, r in runs])


# --- against lifelines ----------------------------------------------------------------------------


@SOME
@given(RUNS)
@example([(1.0, False)])
@example([(3.0, True), (3.0, False), (3.0, True)])
def test_kaplan_meier_is_that_of_lifelines(runs: list[tuple[float, bool]]) -> None:
    lifelines = pytest.importorskip("lifelines", reason="lifelines is an oracle (extra: oracles)")
    fitted = lifelines.KaplanMeierFitter().fit(*arrays(runs))
    curve = survival.kaplan_meier(made(runs))
    theirs = fitted.survival_function_["KM_estimate"]
    assert list(curve.seconds) == pytest.approx(list(theirs.index))
    assert list(curve.share) == pytest.approx(list(theirs), abs=1e-9)
    low, high = (fitted.confidence_interval_.iloc[:, i] for i in (0, 1))
    for i, share in enumerate(curve.share):
        if 1e-9 < share < 1 - 1e-9:
            assert curve.low[i] == pytest.approx(low.iloc[i], abs=1e-9)
            assert curve.high[i] == pytest.approx(high.iloc[i], abs=1e-9)
        else:
            assert curve.low[i] is None
            assert curve.high[i] is None


@SOME
@given(RUNS)
def test_the_median_is_that_of_lifelines_where_no_step_lies_at_one_half(
    runs: list[tuple[float, bool]],
) -> None:
    lifelines = pytest.importorskip("lifelines", reason="lifelines is an oracle (extra: oracles)")
    theirs = lifelines.KaplanMeierFitter().fit(*arrays(runs)).median_survival_time_
    curve = survival.kaplan_meier(made(runs))
    if any(abs(s - 0.5) < 1e-9 for s in curve.share):
        return
    assert survival.median(curve) == (None if math.isinf(theirs) else pytest.approx(theirs))


@SOME
@given(st.lists(st.tuples(TIMES, st.booleans()), min_size=8, max_size=20))
def test_the_median_interval_is_that_of_lifelines(runs: list[tuple[float, bool]]) -> None:
    pytest.importorskip("lifelines", reason="lifelines is an oracle (extra: oracles)")
    from lifelines import KaplanMeierFitter
    from lifelines.utils import qth_survival_time

    fitted = KaplanMeierFitter().fit(*arrays(runs))
    curve = survival.kaplan_meier(made(runs))
    band = fitted.confidence_interval_[fitted.survival_function_["KM_estimate"] > 1e-9]
    low, high = (float(qth_survival_time(0.5, band.iloc[:, i])) for i in (0, 1))
    found = survival.median_interval(curve)
    assert found.high == (None if math.isinf(high) else pytest.approx(high))
    if not math.isinf(low):
        assert found.low == pytest.approx(low)


@SOME
@given(RUNS, st.floats(0.5, 20))
def test_the_restricted_mean_is_that_of_lifelines(
    runs: list[tuple[float, bool]], tau: float
) -> None:
    pytest.importorskip("lifelines", reason="lifelines is an oracle (extra: oracles)")
    from lifelines import KaplanMeierFitter
    from lifelines.utils import restricted_mean_survival_time

    theirs = restricted_mean_survival_time(KaplanMeierFitter().fit(*arrays(runs)), t=tau)
    assert survival.restricted_mean(made(runs), tau)[0] == pytest.approx(theirs, abs=1e-6)


@SOME
@given(RUNS, RUNS)
def test_the_log_rank_test_is_that_of_lifelines(
    a: list[tuple[float, bool]], b: list[tuple[float, bool]]
) -> None:
    pytest.importorskip("lifelines", reason="lifelines is an oracle (extra: oracles)")
    from lifelines.statistics import logrank_test

    times, flags = zip(arrays(a), arrays(b), strict=True)
    p, exact = survival.log_rank(made(a), made(b), arrangements=0)
    assert not exact
    with np.errstate(all="ignore"):
        theirs = logrank_test(*times, event_observed_A=flags[0], event_observed_B=flags[1]).p_value
    assert p == pytest.approx(1.0 if math.isnan(theirs) else theirs, abs=1e-9)


# --- against scipy --------------------------------------------------------------------------------


@MANY
@given(ARRIVED)
def test_without_censoring_everything_is_ordinary(times: list[float]) -> None:
    runs, last = arrived(times), max(times)
    assert survival.median(survival.kaplan_meier(runs)) == pytest.approx(np.median(times))
    mean, _ = survival.restricted_mean(runs, last)
    assert mean == pytest.approx(np.mean(times))
    assert math.exp(survival.log_mean(runs, last)) == pytest.approx(stats.gmean(times))
    interval = survival.mean_interval(runs, last)
    if len(times) < 2:
        assert interval is None
        return
    assert interval is not None
    theirs = stats.ttest_1samp(times, 0).confidence_interval(0.95)
    assert interval.low == pytest.approx(max(theirs.low, 0), rel=1e-6, abs=1e-5)
    assert interval.high == pytest.approx(theirs.high, rel=1e-6, abs=1e-5)


@pytest.mark.filterwarnings("error")
def test_edge_cases_of_kaplan_meier() -> None:
    """Runs censored at a time are still at risk of what is reached then; no run, no event."""
    tied = survival.kaplan_meier(made([(3.0, True), (3.0, False), (3.0, True)]))
    assert tied.share == pytest.approx((1.0, 1 / 3))
    assert tied.at_risk == (3, 1)
    censored = survival.kaplan_meier(made([(2.0, False), (5.0, False)]))
    assert censored.share == (1.0, 1.0, 1.0)
    assert censored.low == censored.high == (None, None, None)
    assert survival.kaplan_meier(made([])).seconds == (0.0,)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("other", [[(2.0, False)], [(1.0, False)], []])
def test_the_log_rank_test_of_runs_that_cannot_differ(other: list[tuple[float, bool]]) -> None:
    first = [(1.0, bool(not other))]
    assert survival.log_rank(made(first), made(other), arrangements=0) == (1.0, False)


@MANY
@given(ARRIVED, ARRIVED)
def test_without_censoring_the_chance_is_that_of_mann_and_whitney(
    a: list[float], b: list[float]
) -> None:
    later = stats.mannwhitneyu(b, a).statistic / (len(a) * len(b))
    chance, undecided = survival.probability_faster(arrived(a), arrived(b))
    assert chance == pytest.approx(later)
    assert undecided == pytest.approx(0.0, abs=1e-12)


@MANY
@given(ARRIVED, ARRIVED, st.floats(1.5, 7.5))
def test_with_one_limit_the_chance_is_gehans(a: list[float], b: list[float], limit: float) -> None:
    """Two runs that are both given up at the limit are a tie."""
    sides = [sample(np.minimum(s, limit), np.array(s) <= limit) for s in (a, b)]
    ranks = [np.where(np.array(s) <= limit, s, 1e9) for s in (a, b)]
    later = stats.mannwhitneyu(ranks[1], ranks[0]).statistic / (len(a) * len(b))
    chance, undecided = survival.probability_faster(*sides)
    assert chance == pytest.approx(later)
    lost = [np.mean(np.array(s) > limit) for s in (a, b)]
    assert undecided == pytest.approx(lost[0] * lost[1])


def test_few_runs_are_tested_exactly() -> None:
    """Five against five, all of one before all of the other: 2 of 252 arrangements."""
    fast, slow = arrived([1.0, 2.0, 3.0, 4.0, 5.0]), arrived([6.0, 7.0, 8.0, 9.0, 10.0])
    assert survival.log_rank(fast, slow) == (pytest.approx(2 / 252), True)
    p, exact = survival.log_rank(fast, slow, arrangements=251)
    assert not exact
    assert p < 2 / 252  # the chi-square is too sure of itself


@MANY
@given(RUNS, RUNS)
def test_the_exact_test_does_not_mind_order_or_sides(
    a: list[tuple[float, bool]], b: list[tuple[float, bool]]
) -> None:
    a, b = a[:5], b[:5]
    p, exact = survival.log_rank(made(a), made(b))
    assert exact
    assert 0 < p <= 1
    assert survival.log_rank(made(b), made(a[::-1])) == (pytest.approx(p), True)


def test_the_exact_test_keeps_its_level() -> None:
    """Of runs from one distribution, with a limit, no more than 5 % come out below .05."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(400):
        times = rng.lognormal(0, 0.5, size=8)
        runs = [sample(np.minimum(t, 1.5), t <= 1.5) for t in (times[:4], times[4:])]
        found.append(survival.log_rank(*runs)[0])
    assert np.mean(np.array(found) <= 0.05) <= 0.08  # 400 draws: two standard errors above .05
    assert np.mean(np.array(found) <= 0.5) > 0.25  # and it is no constant


# --- of any runs ----------------------------------------------------------------------------------


@MANY
@given(RUNS, RUNS)
def test_chances_of_both_sides_are_one(
    a: list[tuple[float, bool]], b: list[tuple[float, bool]]
) -> None:
    one, undecided = survival.probability_faster(made(a), made(b))
    other, same = survival.probability_faster(made(b), made(a))
    assert one + other == pytest.approx(1)
    assert undecided == pytest.approx(same)
    assert undecided / 2 - 1e-9 <= one <= 1 - undecided / 2 + 1e-9


@MANY
@given(RUNS, st.floats(0.1, 10))
def test_a_slower_clock_stretches_times_and_leaves_shares(
    runs: list[tuple[float, bool]], factor: float
) -> None:
    slower = made([(t * factor, r) for t, r in runs])
    curve, stretched = (survival.kaplan_meier(s) for s in (made(runs), slower))
    middle, other = survival.median(curve), survival.median(stretched)
    assert (middle is None) == (other is None)
    if middle is not None:
        assert other == pytest.approx(middle * factor)
    tau = max(t for t, _ in runs)
    mean, _ = survival.restricted_mean(made(runs), tau)
    assert survival.restricted_mean(slower, tau * factor)[0] == pytest.approx(mean * factor)


@MANY
@given(RUNS)
def test_intervals_hold_what_they_are_about(runs: list[tuple[float, bool]]) -> None:
    curve = survival.kaplan_meier(made(runs))
    middle, interval = survival.median(curve), survival.median_interval(curve)
    if middle is not None and interval.low is not None:
        assert interval.low <= middle + 1e-9
    if middle is not None and interval.high is not None:
        assert middle <= interval.high + 1e-9
    tau = max(t for t, _ in runs)
    mean, found = (
        survival.restricted_mean(made(runs), tau)[0],
        survival.mean_interval(made(runs), tau),
    )
    if found is not None:
        assert found.low is not None
        assert found.high is not None
        assert found.low <= mean + 1e-9
        assert mean <= found.high + 1e-9


@MANY
@given(RUNS, st.data())
def test_runs_taken_twice_are_runs_given_twice(
    runs: list[tuple[float, bool]], data: st.DataObject
) -> None:
    """What the bootstrap relies on: counts are the same as repetition."""
    drawn = data.draw(st.lists(st.sampled_from(range(len(runs))), min_size=1, max_size=12))
    own = made(runs)
    tau = min(t for t, _ in runs) + 1
    counts = np.bincount(drawn, minlength=len(runs))[own.order].astype(float)
    once = survival.log_mean(made([runs[i] for i in drawn]), tau)
    assert survival.log_mean(own, tau, counts[None, :])[0] == pytest.approx(float(once))


def test_the_median_interval_of_few_runs_has_no_upper_end() -> None:
    curve = survival.kaplan_meier(arrived([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert survival.median_interval(curve).high is None


@pytest.mark.parametrize(
    ("seconds", "reached"),
    [([1.0], []), ([-1.0], [True]), ([math.inf], [False]), ([[1.0]], [[True]])],
)
def test_what_is_no_sample(seconds: list, reached: list) -> None:
    with pytest.raises(ValueError, match="seconds"):
        sample(seconds, reached)
