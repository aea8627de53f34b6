"""What those are shown that stop trials, once some are run again: as plain lists say, but cheap."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from random_events import KINDS, random_event

from autotune.algorithms.ranking.disturbed import as_pruners_see, to_run_again
from autotune.algorithms.ranking.racing import due, for_pruning
from autotune.algorithms.ranking.repeat_index import RepeatIndex
from autotune.algorithms.ranking.repeats import race_leader, with_mean_times
from autotune.trial import Ended, Report, Reported, State, Target, Trial, after, incumbent

TARGET = Target("acc", 0.9, limit=100.0)


@pytest.mark.parametrize("disturbing", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("raced", [pytest.param(False, marks=pytest.mark.slow), True])
@given(seed=st.integers(0, 10**6), target=st.sampled_from([TARGET, Target("acc", limit=5)]))
@example(seed=54046, target=TARGET)  # three races, all as long as the first runs
def test_it_says_what_plain_lists_say_at_every_event(
    raced: bool, disturbing: bool, target: Target, seed: int
) -> None:
    random, trials = Random(seed), dict[int, Trial]()
    shown = RepeatIndex(trials, target, raced)
    for turn in range(60):
        event = random_event(
            random, trials, float(turn), repeating=0.4, disturbing=disturbing, valued=target.timed
        )
        before = trials.get(event.trial)
        trials[event.trial] = after(before, event)
        shown.note(before, trials[event.trial])
        if random.random() < 0.3:  # it is not asked at every event
            continue
        trial = trials[event.trial]
        made = list(trials.values())
        known = for_pruning(made, target) if raced else with_mean_times(made, target)
        everyone = known if raced else as_pruners_see(known, made, target)
        plain = [t for t in everyone if t.number != trial.number]
        others = shown.others(trial)
        assert list(others) == plain
        assert len(others) == len(plain)
        for hardware in (None, *KINDS):
            assert incumbent(others, hardware) == incumbent(plain, hardware)
        everyone = made
        assert list(shown.means()) == list(with_mean_times(everyone, target))
        assert shown.leader() == race_leader(with_mean_times(everyone, target), target)
        assert shown.to_run_again() == to_run_again(everyone, target)
        for share in (0.1, 0.3, 0.9):
            assert shown.due(share) == due(everyone, target, share)


class Watched(dict[int, Trial]):
    """Trials that count how often somebody goes through all of them."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()

    def items(self) -> Any:
        self.walks += 1
        return super().items()

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("raced", [False, True])
def test_reports_between_two_repeats_walk_through_nothing(raced: bool) -> None:
    def ended(number: int, **more: Any) -> Trial:
        return Trial(number, {}, {}, state=State.REACHED, reason="target", attempts=1,
                     seconds=5.0 + number, ended_at=float(number), **more)  # fmt: skip

    trials = Watched({n: ended(n) for n in range(500)})
    trials[500] = ended(500, kind="race", repeats=0)
    trials[501] = Trial(501, {}, {}, attempts=1, placed=True)
    shown = RepeatIndex(trials, TARGET, raced)
    trials.walks = 0
    assert incumbent(shown.others(trials[501])) is not None
    assert trials.walks == 1
    for step in range(1, 100):
        before, report = trials[501], Report(step, float(step), {"acc": 0.1})
        now = trials[501] = after(before, Reported(501, report, 0.0))
        shown.note(before, now)
        assert incumbent(shown.others(now), now.hardware) is not None
    assert trials.walks == 1
    before = trials[500]
    now = trials[500] = after(before, Ended(500, State.CENSORED, "capped", 9.0))
    shown.note(before, now)
    shown.others(trials[501])
    assert trials.walks == 2, "a repeat that has ended changes how its trial stands"
