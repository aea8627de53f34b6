"""The order of trials in the race, and the pruners that compare at equal seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.algorithms.pruners.rules import (
    asha,
    bottom_at_same_time,
    first_of,
    hyperband,
    slower_than_best,
)
from autotune.algorithms.ranking.equal_time import GapCurve, equal_time_ranks
from autotune.trial import Report, State, Target, Trial

TARGET = Target("acc", 0.9, limit=27.0)


def trial(number: int, rate: float, seconds: int, state: State = State.CENSORED, **more: object):
    """Its accuracy grows by `rate` a second."""
    reports = tuple(Report(t, float(t), {"acc": rate * t}) for t in range(1, seconds + 1))
    spent = float(seconds)
    return Trial(number, {}, {}, state=state, seconds=spent, reports=reports, reason="x", **more)


def order(*trials: Trial) -> list[int]:
    places = equal_time_ranks(trials, TARGET)
    return sorted(places, key=places.__getitem__)


def test_reached_first_then_at_equal_seconds_then_failed() -> None:
    slow = trial(0, 0.09, 10, State.REACHED)
    fast = trial(1, 0.15, 6, State.REACHED)
    stopped_early_but_better = trial(2, 0.08, 3)
    ran_long_but_worse = trial(3, 0.04, 20)
    failed = trial(4, 0.0, 0, State.FAILED)
    found = order(slow, fast, stopped_early_but_better, ran_long_but_worse, failed)
    assert found == [1, 0, 2, 3, 4]
    assert TARGET.best(ran_long_but_worse) > TARGET.best(stopped_early_but_better)


def test_what_comes_after_the_incumbents_time_does_not_count() -> None:
    best = trial(0, 0.3, 3, State.REACHED)
    late = Trial(1, {}, {}, state=State.CENSORED, seconds=20.0, reason="limit", reports=(
        Report(1, 3.0, {"acc": 0.1}), Report(2, 20.0, {"acc": 0.89})))  # fmt: skip
    early = Trial(2, {}, {}, state=State.CENSORED, seconds=3.0, reason="capped", reports=(
        Report(1, 3.0, {"acc": 0.2}),))  # fmt: skip
    assert order(best, late, early) == [0, 2, 1]


def test_two_reports_at_one_time() -> None:
    """A recorded clock may stand still; the later of the two counts."""
    reports = (Report(1, 1.0, {"acc": 0.1}), Report(2, 1.0, {"acc": 0.5}))
    still = Trial(0, {}, {}, state=State.CENSORED, seconds=1.0, reason="x", reports=reports)
    assert order(still, trial(1, 0.3, 2)) == [0, 1]


def test_what_has_shown_too_little_has_no_place() -> None:
    reached = trial(0, 0.09, 10, State.REACHED)
    running, young = trial(1, 0.05, 4, State.RUNNING), trial(2, 0.05, 1, State.RUNNING)
    cut = Trial(3, {}, {}, state=State.CENSORED, reason="budget", seconds=1.0)
    assert set(equal_time_ranks([reached, running, young, cut], TARGET)) == {0, 1}
    assert equal_time_ranks([], TARGET) == {}


@given(st.lists(st.tuples(st.floats(0.001, 0.2), st.integers(1, 27)), min_size=2, max_size=12))
def test_places_span_the_unit_interval(drawn: list[tuple[float, int]]) -> None:
    trials = [trial(i, rate, seconds) for i, (rate, seconds) in enumerate(drawn)]
    places = equal_time_ranks(trials, TARGET)
    assert set(places) == set(range(len(trials)))
    assert min(places.values()) == 0.0
    assert max(places.values()) <= 1.0
    equal = [trial(i, rate, 9) for i, (rate, _) in enumerate(drawn)]
    found = equal_time_ranks(equal, TARGET)
    for a, (rate, _) in enumerate(drawn):
        for b, (other, _) in enumerate(drawn):
            assert rate <= other or found[a] <= found[b]


def curve(
    number: int, accuracies: Sequence[float] = (), waits: Sequence[int] = (), reason: str = "bottom"
) -> Trial:
    """A stopped trial that reports the accuracies, every second or so many after the one before."""
    times = [float(t) for t in accumulate(waits or [1] * len(accuracies))]
    reports = tuple(
        Report(i, t, {"acc": a})
        for i, (t, a) in enumerate(zip(times, accuracies, strict=True), start=1)
    )
    spent = times[-1] if times else 0.0
    return Trial(
        number, {}, {}, state=State.CENSORED, seconds=spent, reports=reports, reason=reason
    )


def test_who_led_at_every_common_second_is_not_behind_those_that_were_stopped() -> None:
    leader = curve(0, [0.1, 0.2, 0.3, 0.35, 0.5, 0.6, 0.7, 0.8], reason="limit")
    stopped = [curve(i, [0.1, 0.15, 0.2, 0.25 + i / 100]) for i in (1, 2)]
    late = [curve(i, [0.0, 0.0, 0.1, 0.2, 0.6, 0.7, 0.8, 0.85 + i / 1000]) for i in range(3, 9)]
    places = equal_time_ranks([leader, *stopped, *late], TARGET)
    assert places[0] <= min(places[1], places[2])


def test_what_a_rule_stopped_is_not_better_than_what_went_on() -> None:
    went_on = curve(0, [0.1, 0.1, 0.1, 0.1, 0.5, 0.6], reason="limit")
    worse = curve(1, [0.0, 0.0, 0.0, 0.0, 0.1, 0.2], reason="limit")
    stopped = curve(2, [0.2, 0.2, 0.2, 0.2])
    places = equal_time_ranks([went_on, worse, stopped], TARGET)
    assert places[0] == places[2] < places[1]
    cut = curve(2, [0.2] * 6, reason="budget")
    longer = curve(0, [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.6], reason="limit")
    places = equal_time_ranks([longer, worse, cut], TARGET)
    assert places[2] < places[0], "it was interrupted, which says nothing about it"


REPORT = st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5]), st.sampled_from([0, 1, 1, 2]))


@given(
    st.lists(st.lists(REPORT, max_size=8), max_size=10),
    st.sampled_from(
        [
            Target("acc", v, limit=6.0, scope=s)
            for v, s in ((0.9, "best"), (None, "best"), (None, "last"))
        ]
    ),
)
def test_who_dominates_and_was_seen_as_long_never_ranks_behind(
    drawn: list[list[tuple[float, int]]], target: Target
) -> None:
    """Reports may be at the same second, as in recorded curves and on coarse clocks."""
    trials = [curve(i, *zip(*points, strict=True)) for i, points in enumerate(drawn)]
    places = equal_time_ranks(trials, target)
    curves = [GapCurve(t, target) for t in trials]
    seconds = [i / 2 for i in range(20)]
    for a, one in enumerate(curves):
        for b, other in enumerate(curves):
            common = [t for t in seconds if t <= min(one.until, other.until)]
            if one.until >= other.until and all(one.at(t) <= other.at(t) for t in common):
                assert places[a] <= places[b], (drawn[a], drawn[b])


def test_the_bottom_is_stopped_by_its_rank_at_equal_seconds() -> None:
    others = [trial(i, 0.01 * (i + 1), 20) for i in range(6)]
    prune = bottom_at_same_time(0.5)
    assert prune(trial(9, 0.045, 5, State.RUNNING), others, TARGET) is None
    stop = prune(trial(9, 0.025, 5, State.RUNNING), others, TARGET)
    assert stop.reason == "bottom"
    assert stop.detail == "4 of 6 others were nearer to the target after 5.00 s"
    assert prune(trial(9, 0.025, 5, State.RUNNING), others[:4], TARGET) is None
    unseen = [trial(i, 0.05, 4) for i in range(6)]
    assert prune(trial(9, 0.001, 5, State.RUNNING), unseen, TARGET) is None


def test_asha_judges_at_rungs_of_seconds_only() -> None:
    others = [trial(i, 0.01 * (i + 1), 27) for i in range(5)]
    prune = asha(3, first=1 / 27)  # rungs after 1, 3, 9 and 27 seconds
    bad = {t: prune(trial(9, 0.005, t, State.RUNNING), others, TARGET) for t in range(1, 11)}
    assert {t for t, stop in bad.items() if stop} == {1, 3, 9}
    assert bad[3].detail == "5 of 5 others were nearer to the target after 3.00 s"
    assert prune(trial(9, 0.045, 3, State.RUNNING), others, TARGET) is None
    assert prune(trial(9, 0.025, 3, State.RUNNING), others, TARGET) is not None


def test_hyperband_compares_within_a_bracket() -> None:
    others = [trial(i, 0.02, 27) for i in range(30)]
    prune = hyperband(3, brackets=3)
    stopped = {n: prune(trial(30 + n, 0.001, 3, State.RUNNING), others, TARGET) for n in range(3)}
    assert [stopped[n] is not None for n in range(3)] == [True, True, False]
    assert stopped[0].reason == "hyperband"
    assert "of 10 others" in stopped[0].detail


def test_the_first_of_several_that_stops_gives_the_reason() -> None:
    others = [trial(0, 0.3, 3, State.REACHED), *(trial(i, 0.1, 9) for i in range(1, 7))]
    prune = first_of(slower_than_best(), bottom_at_same_time())
    assert prune(trial(9, 0.01, 2, State.RUNNING), others, TARGET).reason == "bottom"
    assert prune(trial(9, 0.2, 3, State.RUNNING), others, TARGET).reason == "capped"
    assert prune(trial(9, 0.29, 2, State.RUNNING), others, TARGET) is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: bottom_at_same_time(1.0), "bottom_at_same_time share must lie between 0 and 1"),
        (lambda: asha(1.0), "asha reduction must be more than 1 but got 1.0"),
        (lambda: asha(first=0.0), "asha first must lie between 0 and 1 but got 0.0"),
        (lambda: hyperband(brackets=0), "hyperband brackets must be a whole number >= 1 but got 0"),
    ],
)
def test_mistakes(make: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()
