"""Pruners: functions of frozen trials."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.algorithms import specs
from autotune.algorithms.pruners.rules import PRUNERS, make_pruner, never, slower_than_best
from autotune.errors import UserError
from autotune.trial import Hardware, Report, State, Stop, Target, Trial
from tests.support.curves import quick

TARGET = Target("acc", 0.9, limit=100)
CPU, SHARED = Hardware("cpu"), Hardware("cpu", shared=True)


def trial(number: int, seconds: float, state: State = State.RUNNING, on: Hardware = CPU) -> Trial:
    return Trial(number, {}, state=state, seconds=seconds, hardware=on)


BEST = trial(0, 10.0, State.REACHED)


@pytest.mark.parametrize(
    ("factor", "seconds", "stops"),
    [
        (1.0, 9.999, False),
        (1.0, 10.0, True),
        (1.0, 11.0, True),
        (1.5, 14.9, False),
        (1.5, 15, True),
    ],
)
def test_a_trial_is_capped_exactly_at_factor_times_the_best(
    factor: float, seconds: float, stops: bool
) -> None:
    others = [BEST, trial(2, 12.0, State.REACHED), trial(3, 1.0, State.CENSORED), trial(4, 2.0)]
    stop = slower_than_best(factor)(trial(1, seconds), others, TARGET)
    assert (stop is not None) == stops
    if stop is not None:
        assert stop == Stop("capped", f"{seconds:.2f} s spent, trial 0 took 10.00 s")


def reporting(*seconds: float) -> Trial:
    """A running trial with reports at these seconds."""
    reports = tuple(Report(i, at, {"acc": 0.5}) for i, at in enumerate(seconds))
    return Trial(1, {}, seconds=seconds[-1], reports=reports, hardware=CPU)


def test_a_trial_whose_next_report_comes_too_late_is_capped() -> None:
    assert slower_than_best()(reporting(0.0, 3.0, 6.0), [BEST], TARGET) is None
    stop = slower_than_best()(reporting(0.0, 3.0, 6.5, 9.5), [BEST], TARGET)
    says = "9.50 s spent, the next report in 3.00 s or more, trial 0 took 10.00 s"
    assert stop == Stop("capped", says)
    assert slower_than_best(1.5)(reporting(0.0, 3.0, 6.0, 9.0), [BEST], TARGET) is None
    assert slower_than_best(1.5)(reporting(0.0, 3.0, 6.0, 9.0, 12.5), [BEST], TARGET) is not None
    # one that may come at the same time is awaited
    assert slower_than_best()(reporting(0.0, 1.0, 5.0, 9.0), [BEST], TARGET) is None
    # the shortest time between reports counts; one report shows none, nor does one written twice
    assert slower_than_best()(reporting(0.0, 0.4, 9.5), [BEST], TARGET) is None
    assert slower_than_best()(reporting(9.5), [BEST], TARGET) is None
    assert slower_than_best()(reporting(9.5, 9.5), [BEST], TARGET) is None


@given(st.lists(st.floats(0.1, 1.0), min_size=1, max_size=30), st.floats(0.001, 10.0))
@quick
def test_no_trial_that_would_become_best_is_capped(times: list[float], later: float) -> None:
    """If reports come no sooner one after another than before."""
    full = reporting(*accumulate(sorted(times), initial=0.0))
    best = trial(0, full.seconds + later, State.REACHED)
    for count in range(1, len(full.reports)):
        now = reporting(*(r.seconds for r in full.reports[:count]))
        assert slower_than_best()(now, [best], TARGET) is None


def test_nothing_is_capped_before_a_trial_has_reached_the_target() -> None:
    others = [trial(0, 1.0, State.CENSORED), trial(2, 1.0), trial(3, 1.0, State.FAILED)]
    assert slower_than_best()(trial(1, 99.0), others, TARGET) is None
    assert slower_than_best()(trial(1, 99.0), [], TARGET) is None


def test_unequal_hardware_is_never_compared() -> None:
    assert slower_than_best()(trial(1, 99.0, on=SHARED), [BEST], TARGET) is None
    shared_best = trial(0, 10.0, State.REACHED, SHARED)
    assert slower_than_best()(trial(1, 99.0), [shared_best], TARGET) is None
    assert slower_than_best()(trial(1, 99.0, on=SHARED), [shared_best], TARGET) is not None


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slower_than_best factor must be >= 1 but got 0\.5"):
        slower_than_best(0.5)
    with pytest.raises(ValueError, match="factor"):
        slower_than_best(float("nan"))


def test_never_stops_nothing() -> None:
    assert never(trial(1, 1e9), [BEST], TARGET) is None


@pytest.mark.parametrize("name", PRUNERS)
def test_every_named_pruner_is_made_and_answers(name: str) -> None:
    assert make_pruner(name)(trial(1, 1.0), [BEST], TARGET) is None


def test_pruners_by_name_and_by_value() -> None:
    assert make_pruner(never) is never
    with pytest.raises(UserError, match="unknown pruner 'convergance'; did you mean 'convergence'"):
        make_pruner("convergance")


def test_a_named_pruner_takes_its_settings_by_keyword() -> None:
    prune = make_pruner("slower_than_best(factor=1.5)")
    assert prune(trial(1, 14.9), [BEST], TARGET) is None
    assert prune(trial(1, 15.0), [BEST], TARGET) is not None
    wide = make_pruner("forecast(factor=2, chance=0.1)")
    assert wide(trial(1, 19.9), [BEST], TARGET) is None, "its capping has the same factor"
    assert wide(trial(1, 20.0), [BEST], TARGET) is not None


@pytest.mark.parametrize(
    "text",
    [
        "asha(reduction=2, first=0.1, least=2, brackets=1)",
        "hyperband(reduction=3, brackets=3)",
        "bottom_at_same_time(share=0.5, least=5)",
        "forecast(chance=0.05, least_reports=4, floor=0.1, factor=1.25)",
        "none()",
    ],
)
def test_every_setting_can_be_written(text: str) -> None:
    assert make_pruner(text)(trial(1, 1.0), [BEST], TARGET) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slower_than_best(1.25)", "pruner 'slower_than_best(1.25)': give its arguments by key"),
        ("slower_than_best(facto=2)", "unknown argument of slower_than_best 'facto'; did you mean"),
        ("slower_than_best(factor=0.5)", "factor must be >= 1 but got 0.5"),
        ("slower_than_best(factor=x)", "arguments must be plain values"),
        ("ashaa(reduction=2)", "unknown pruner 'ashaa'; did you mean 'asha'?"),
        ("asha(brackets=0)", "asha brackets must be a whole number >= 1 but got 0"),
        ("asha(least='2')", "asha least must be a whole number >= 0 but got '2'"),
        ("convergence(factor=2)", "pruner 'convergence' takes no arguments"),
        ("asha(", "unknown pruner 'asha('"),
        ("asha(least=2, least=3)", "least is given twice"),
        ("asha(**{'least': 2})", "give its arguments by keyword"),
    ],
)
def test_wrong_settings_get_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        make_pruner(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_may_hold_brackets_and_a_setting_a_colon() -> None:
    assert specs.is_path("/tmp/a (1)/mine.py:rule")
    assert not specs.is_path("forecast(of='a:b')")
    assert not specs.is_path("asha")
