"""The time that one more run should take, by hits, misses and how much times vary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from noisy_race import MISSED, reached
from sims import METRIC

from autotune.algorithms.ranking.expected import expected_seconds, never_vary
from autotune.algorithms.ranking.repeats import repeats_by_trial
from autotune.errors import UserError
from autotune.trial import Clock, Report, State, Target, Trial

LIMIT = 100.0
TARGET = Target(METRIC, 1.0, limit=LIMIT)
Times = Sequence[float | None]  # None for a run that missed


def runs_of(*configurations: Times, baseline: int | None = None) -> list[Trial]:
    """Each configuration's first run, and then the repeats of all."""
    kinds = ["baseline" if n == baseline else "trial" for n in range(len(configurations))]
    trials = [_run(n, times[0], kind=kinds[n]) for n, times in enumerate(configurations)]
    for of, times in enumerate(configurations):
        for time in times[1:]:
            trials.append(_run(len(trials), time, kind="race", repeats=of))
    return trials


def _run(number: int, time: float | None, **more: Any) -> Trial:
    return (
        reached(number, LIMIT, **MISSED, **more) if time is None else reached(number, time, **more)
    )


def expected(trials: Sequence[Trial]) -> dict[int, float]:
    return expected_seconds(trials, repeats_by_trial(trials), TARGET)


def leading(*configurations: Times, baseline: int | None = None) -> int:
    found = expected(runs_of(*configurations, baseline=baseline))
    return min(found, key=lambda number: found[number])


# --- by hand --------------------------------------------------------------------------------------


def near(one: float, other: float) -> float:
    """How much the runs of a configuration with such a time count for another one."""
    return math.exp(-(math.log(one / other) ** 2) / (2 * 0.35**2))


def test_one_more_run_may_miss_as_often_as_those_that_are_about_as_fast_did() -> None:
    """Of the other configurations' repeats, with half a miss in two runs besides."""
    found = expected(runs_of([10.0, 10.0, 10.0], [20.0, None, None], [30.0]))
    fast, slow, far = near(10, 20), near(20, 30), near(10, 30)
    usual = {
        0: (2 * fast + 0.5) / (2 * fast + 2),
        1: 0.5 / (2 * fast + 2),
        2: (2 * slow + 0.5) / (2 * slow + 2 * far + 2),
    }
    shares = {0: usual[0] / 3, 1: (2 + usual[1]) / 3, 2: usual[2]}
    times = {0: 10.0, 1: 20.0, 2: 30.0}
    assert found == pytest.approx(
        {n: (1 - shares[n]) * times[n] + shares[n] * LIMIT for n in shares}
    )


def test_one_run_that_arrived_does_not_lead_before_ten_that_took_little_longer() -> None:
    slower = [10.5, 10.0, 11.0, 10.4, 10.6, 10.2, 10.8, 10.5, 10.3, 10.7]
    assert leading([10.0], slower) == 1
    assert leading([7.0, 7.1, 7.3], slower) == 0, "but three that took a third less do"


def test_three_that_arrived_do_not_lead_where_others_that_are_as_fast_missed() -> None:
    """Short schedules: each has arrived three times, and one in four arrives."""
    proven = [20.0, 19.0, 21.0, 20.0, 20.5, 19.5]
    assert leading([14.0, 14.5, 15.0], proven) == 0
    assert leading([14.0, 14.5, 15.0], proven, *[[13.0, None, None]] * 4) == 1


def test_what_is_faster_than_the_baseline_may_miss_more_often_than_any_run_has_shown() -> None:
    """By the square of its speed; such a miss counts as three times the baseline's time."""
    baseline, twice = [20.0, 20.0, 20.0], [10.0, 10.0, None]
    plain = expected(runs_of(baseline, twice, [40.0]))
    found = expected(runs_of(baseline, twice, [40.0], baseline=0))
    rate = 0.15 * 8 / (8 + 2)  # two repeats of the baseline arrived
    added = {0: 0.0, 1: rate * (2**2 - 1) / 3 * (3 * 20 - 10), 2: 0.0}
    assert found == pytest.approx({n: plain[n] + added[n] for n in added})


def test_a_search_does_not_end_with_a_lucky_run_that_was_much_faster_than_the_baseline() -> None:
    """If one in three of its runs misses, both repeats may arrive nevertheless."""
    baseline, lucky, careful = [9.0, 9.5, 8.8], [3.5, 3.6, 3.4], [6.0, 6.1, 5.9]
    assert leading(baseline, lucky, careful) == 1
    assert leading(baseline, lucky, careful, baseline=0) == 2
    as_fast = [[3.6, 3.7, 3.5, 3.6, 3.7]] * 2
    assert leading(baseline, lucky, careful, *as_fast, baseline=0) != 2, "no run that fast missed"


@pytest.mark.parametrize("limit", [60.0, 100.0, 450.0])
@pytest.mark.parametrize("time", [10.0, 8.0, 6.0, 4.0, 2.0, 0.5])
def test_three_runs_in_at_most_half_of_the_baselines_time_lead_before_it(
    time: float, limit: float
) -> None:
    """However fast: what is faster does not look riskier without end."""
    target = Target(METRIC, 1.0, limit=limit)
    trials = runs_of([20.0, 20.5, 19.5], [time, 1.02 * time, 0.98 * time], baseline=0)
    found = expected_seconds(trials, repeats_by_trial(trials), target)
    assert found[1] < found[0]


@pytest.mark.parametrize("time", [19.0, 15.0, 10.0, 8.0, 5.0, 2.0])
def test_a_race_that_arrived_does_not_put_a_baseline_of_one_run_first(time: float) -> None:
    for runs in ([time], [time, 1.02 * time], [time, 1.02 * time, 0.98 * time]):
        assert leading([20.0], runs, baseline=0) == 1


def test_a_far_limit_does_not_add_to_the_misses_that_nobody_has_seen() -> None:
    trials = runs_of([20.0, 20.0, 20.0], [10.0, 11.0], [12.0], baseline=0)
    again = repeats_by_trial(trials)
    added = []
    for limit in (100.0, 1e6):
        target = Target(METRIC, 1.0, limit=limit)
        other = [replace(t, kind="trial") if t.kind == "baseline" else t for t in trials]
        with_it, without = (expected_seconds(of, again, target) for of in (trials, other))
        added.append({n: with_it[n] - without[n] for n in with_it})
    assert added[0] == pytest.approx(added[1])
    assert added[0][0] == 0 < min(added[0][1], added[0][2])


def test_runs_that_take_longer_than_the_first_count_for_those_that_ran_once() -> None:
    once = [10.0]
    found = expected(runs_of([10.0, 15.0, 20.0], once))
    usual = 0.5 / (2 * near(10, 15) + 2)
    assert found[1] == pytest.approx((1 - usual) * 15.0 + usual * LIMIT)


def test_where_times_do_not_vary_and_nothing_misses_they_are_what_they_were() -> None:
    trials = runs_of([10.0] * 4, [9.0], [12.0])
    assert never_vary(trials, repeats_by_trial(trials), TARGET)
    assert expected(trials) == {0: 10.0, 1: 9.0, 2: 12.0}


def test_only_those_that_arrived_in_some_run_have_a_time() -> None:
    trials = runs_of([None], [None, 50.0], [40.0, None, None], [None, None])
    assert expected(trials).keys() == {1, 2}
    failed = reached(4, 3.0, state=State.FAILED, reason="Error")
    assert expected([*trials, failed]).keys() == {1, 2}


def test_a_run_that_replaces_a_disturbed_one_proves_no_more_than_one_run() -> None:
    """It is there since the machine was busy, and not because it leads."""
    at_end = Report(1, 30.0, {METRIC: 1.0}, Clock(train=30.0), 12.0)
    trials = [reached(0, 20.0), reached(1, 30.0, reports=(at_end,))]
    assert trials[1].disturbed
    found = expected([*trials, reached(2, 25.0, kind="race", repeats=1)])
    assert found[0] < found[1]
    busy = reached(2, 30.0, kind="race", repeats=1, reports=(at_end,))
    later = expected([*trials, busy, reached(3, 17.0)])
    assert sorted(later, key=lambda number: later[number]) == [3, 1, 0], "17, 18 and 20 s"


def test_a_value_to_reach_always_has_a_limit_that_a_miss_can_count_as() -> None:
    with pytest.raises(UserError, match="needs a limit"):
        Target(METRIC, 1.0)
    with pytest.raises(UserError, match="needs a limit"):
        Target(METRIC, 1.0, limit_steps=100)
    steps = Target(METRIC, 1.0, clock="steps", limit_steps=1000)
    trials = runs_of([100.0, None], [400.0])
    found = expected_seconds(trials, repeats_by_trial(trials), steps)
    share = (1 + 0.5 / 2) / 2
    assert found[0] == pytest.approx((1 - share) * 100 + share * 1000)


# --- in general -----------------------------------------------------------------------------------

TIME = st.floats(1.0, LIMIT - 1)
RUNS = st.lists(st.one_of(TIME, st.none()), max_size=6)
CONFIGURATION = st.tuples(TIME, RUNS).map(lambda c: [c[0], *c[1]])
CONFIGURATIONS = st.lists(CONFIGURATION, min_size=1, max_size=5)
BASELINE = st.sampled_from([None, 0, 1])  # the number of its trial, if there is such a one


@given(CONFIGURATIONS, BASELINE)
@example([[34.0], [1.0, None], [1.0, None, None]], 0)  # the limit but for rounding
def test_it_is_no_less_than_the_mean_of_its_runs_that_arrived_and_no_more_than_the_limit(
    configurations: list[Times], baseline: int | None
) -> None:
    """So far as these do not exceed the limit once they are corrected for luck."""
    found = expected(runs_of(*configurations, baseline=baseline))
    assert found.keys() == set(range(len(configurations)))
    for number, times in enumerate(configurations):
        arrived = [time for time in times if time is not None]
        least = sum(arrived) / len(arrived)
        assert found[number] >= least * (1 - 1e-9)
        if len(times) >= 3:
            assert found[number] <= LIMIT * (1 + 1e-9)


@given(CONFIGURATIONS, BASELINE, st.data())
def test_another_miss_never_helps_and_another_arrival_at_its_mean_never_hurts(
    configurations: list[Times], baseline: int | None, data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(0, len(configurations) - 1))
    times = [*configurations[chosen], *([configurations[chosen][0]] * 2)]  # beyond three runs
    arrived = [time for time in times if time is not None]
    mean = sum(arrived) / len(arrived)

    def with_runs(*more: float | None) -> float:
        changed = [*configurations]
        changed[chosen] = [*times, *more]
        trials = runs_of(*changed, baseline=baseline)
        if never_vary(trials, repeats_by_trial(trials), TARGET):
            return -1.0  # known exactly
        return expected(trials)[chosen]

    missed, now, again = with_runs(None), with_runs(), with_runs(mean)
    if now >= 0:
        assert missed > now
    if now >= 0 and again >= 0:
        assert again <= now + 1e-9


@given(
    st.lists(TIME, min_size=1, max_size=8, unique_by=lambda time: round(time, 3)),
    st.sampled_from([0, 3, 4, 5]),
    BASELINE,
)
def test_without_misses_or_luck_the_order_is_that_of_the_times(
    times: list[float], repeats: int, baseline: int | None
) -> None:
    """Once three repeats have shown it, and before there are any."""
    runs = ([time] * (1 + repeats if i == 0 else 1) for i, time in enumerate(times))
    trials = runs_of(*runs, baseline=baseline)
    found = expected(trials)
    assert sorted(found, key=lambda n: found[n]) == sorted(found, key=lambda n: times[n])
    if repeats:
        assert found == pytest.approx(dict(enumerate(times)))


@given(CONFIGURATIONS, BASELINE, st.randoms(use_true_random=False))
def test_it_does_not_depend_on_the_order_in_which_repeats_ended(
    configurations: list[Times], baseline: int | None, random: Any
) -> None:
    shuffled = []
    for first, *again in configurations:
        random.shuffle(again)
        shuffled.append([first, *again])
    found, known = (expected(runs_of(*c, baseline=baseline)) for c in (shuffled, configurations))
    assert found == pytest.approx(known)
