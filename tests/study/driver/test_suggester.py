"""Suggestions are made beside the loop; a slow sampler is asked before a group is idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sims import RATES, RealTime, race, racing, simulate

import autotune as at
from autotune.backends.simulator import SimPool
from autotune.study.driver import suggester
from autotune.trial import Trial

RATE = 0.25  # reaches the target after 40 seconds, which last 0.4


class Noted:
    """Notes what it is asked and shown, and when; it takes `seconds` over it `every` so often."""

    def __init__(self, seconds: float = 0.0, rate: float = RATE, every: int = 1) -> None:
        self.seconds, self.rate, self.every = seconds, rate, every
        self.asked: list[tuple[int, tuple[Trial, ...]]] = []
        self.events: list[str] = []
        self.threads: set[int] = set()

    def ask(self, number: int, trials: Sequence[Trial]) -> dict[str, float]:
        self.threads.add(threading.get_ident())
        self.asked.append((number, tuple(trials)))
        self.events.append(f"asked {number}")
        if number % self.every == 0:
            time.sleep(self.seconds)
        self.events.append(f"drawn {number}")
        return {"rate": self.rate}

    def watch(self, event: Any, trials: Mapping[int, Trial]) -> None:
        self.events.append(f"{type(event).__name__.lower()} {event.trial}")

    def study(self, folder: Path, trials: int, workers: int = 1, **options: Any) -> at.StudyResult:
        pool = options.pop("pool", None) or RealTime(race, workers)
        made = options.pop("experiment", None) or racing([RATE])
        options = {"pruner": "none", "sampler": self, "watch": self.watch, **options}
        return simulate(made, folder, trials, pool=pool, **options)


def before(events: Sequence[str], one: str, other: str) -> bool:
    return events.index(one) < events.index(other)


def test_a_slow_sampler_is_asked_while_the_groups_train(fast_path: Path) -> None:
    slow = Noted(seconds=0.2)
    result = slow.study(fast_path, 6)
    assert [t.number for t in result.trials] == list(range(6))
    for number in range(2, 5):  # the first suggestion shows that it is slow
        assert before(slow.events, f"asked {number + 1}", f"ended {number}"), slow.events
    assert all(t.params == {"rate": RATE} for t in result.trials[1:])
    assert len(slow.threads) == 1, "a sampler is called from one thread"


@pytest.mark.slow
def test_a_sampler_that_fits_now_and_then_is_not_waited_for_at_each_fit(fast_path: Path) -> None:
    fits = Noted(seconds=0.25, every=3)
    fits.study(fast_path, 14)
    for number in (9, 12):  # the fits for trials 3 and 6 show that it is slow at times
        assert before(fits.events, f"asked {number}", f"ended {number - 1}"), fits.events


def test_one_slow_suggestion_is_soon_forgotten_and_two_are_in_the_end(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggester, "REMEMBERED", 4)
    noted = Noted()
    asked = suggester.Suggester(noted, RealTime(race, 1))
    slow = []
    for number, seconds in enumerate([0.2, 0.0, 0.2, 0.0, 0.0, 0.0]):
        noted.seconds = seconds
        while asked.take(number, ()) is None:
            time.sleep(0.001)
        slow.append(asked.slow)
    asked.close()
    assert slow == [True, False, True, True, False, False]


def test_a_stale_model_knows_what_runs_but_not_how_it_ended(fast_path: Path) -> None:
    slow = Noted(seconds=0.2)
    slow.study(fast_path, 6)
    for number, shown in slow.asked[2:]:
        assert [t.number for t in shown] == list(range(number))
        assert not shown[-1].ended
        assert all(t.ended for t in shown[:-1])


def test_a_quick_sampler_waits_for_what_has_just_ended(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggester, "SLOW_SECONDS", 60.0)
    quick = Noted()
    quick.study(fast_path, 5)
    for number, shown in quick.asked:
        assert [t.number for t in shown] == list(range(number))
        assert all(t.ended for t in shown)


def test_groups_that_are_idle_together_have_a_point_each_in_the_end(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All trials last equally long; what runs and what is held ready is shown as running."""
    monkeypatch.setattr(suggester, "SLOW_SECONDS", 0.0)
    together = Noted(seconds=0.03)
    result = together.study(fast_path, 24, workers=4)
    assert sorted(t.number for t in result.trials) == list(range(24))
    assert [number for number, _ in together.asked] == list(range(1, 24)), "each is drawn once"
    for number, shown in together.asked:
        assert [t.number for t in shown] == list(range(number)), "those held ready are shown too"
        assert all(t.params == {"rate": RATE} for t in shown[1:])
    ahead = [
        sum(not before(together.events, f"suggested {n}", f"asked {number}") for n in range(number))
        for number in range(1, 24)
    ]
    assert max(ahead) >= 1, "points are held ready beside others"
    assert max(ahead) <= 3, "and not more than there are groups"


@pytest.mark.slow
def test_between_races_suggestions_are_asked_ahead(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggester, "SLOW_SECONDS", 0.0)
    noted = Noted(seconds=0.02)
    result = noted.study(fast_path, 48, workers=2, racing=0.1)
    races = [t.number for t in result.trials if t.kind == "race"]
    assert 2 <= len(races) <= 8
    assert [t.number for t in result.trials] == list(range(48 + len(races)))
    asked = [number for number, _ in noted.asked]
    assert len(asked) == 47
    assert asked == sorted(set(asked)) == [t.ask for t in result.trials if t.ask is not None]
    between = [shown for number, shown in noted.asked if races[0] < number < races[-1]]
    running = [sum(not t.ended for t in shown) for shown in between]
    assert sum(n >= 2 for n in running) > len(running) / 2, "asked while both groups train"


class Folders(RealTime):
    """Its checkpoints are folders, which forks copy."""

    def resume(self, trial: int, change: Any, save: str | None) -> None:
        super().resume(trial, change, save)
        running = self._running[trial]
        if save is not None and running.saved is not None:
            Path(save).mkdir(parents=True, exist_ok=True)
            Path(save, "rank-0.pt").write_bytes(b"state")
            running.saved = replace(running.saved, path=save)


class ForksTheBaseline:
    """Replaces trial 1 by a fork of the running baseline, at its 20th report."""

    checkpoint_interval = 5.0

    def __call__(self, trial: Trial, *_: Any) -> at.Fork | None:
        due = trial.number == 1 and len(trial.reports) == 20
        return at.Fork(0, {"rate": RATE}) if due else None


def test_a_fork_takes_no_number_from_a_suggestion_that_is_being_computed(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial's number is given when it is written down; asks have numbers of their own."""
    monkeypatch.setattr(suggester, "SLOW_SECONDS", 0.0)
    noted = Noted(seconds=0.02)
    policy = at.FailurePolicy(checkpoint_interval=5, keep_checkpoints=8)
    asked = {"controller": ForksTheBaseline(), "pool": Folders(race, 2)}
    asked |= {"experiment": racing([RATE], failure=policy)}
    result = noted.study(fast_path, 8, **asked)
    assert [t.number for t in result.trials] == list(range(8))
    (fork,) = (t.number for t in result.trials if t.origin is not None)
    asks = [t.ask for t in result.trials if t.ask is not None]
    assert asks == [number for number, _ in noted.asked][: len(asks)], "none is lost or reordered"
    assert asks == sorted(set(asks))
    later = [t for t in result.trials if t.ask is not None and t.number > fork]
    assert later[0].ask == later[0].number - 1, "it was asked for before the fork was written down"
    longer = noted.study(fast_path, 10, **{**asked, "pool": Folders(race, 2)})
    more = [t.ask for t in longer.trials[8:]]
    assert min(n for n in more if n is not None) > max(asks), "a resumed study repeats no ask"


def test_beside_a_controller_that_never_forks_suggestions_are_asked_ahead(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggester, "SLOW_SECONDS", 0.0)
    noted = Noted(seconds=0.02)
    noted.study(fast_path, 5, controller="policy", experiment=racing([RATE], knobs=("lr",)))
    for number, shown in noted.asked[1:]:
        assert number == len(shown)
        assert not shown[-1].ended


def test_given_configurations_come_first_and_no_more_is_asked_than_is_needed(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggester, "SLOW_SECONDS", 0.0)
    noted = Noted(seconds=0.02)
    noted.study(fast_path, 5, experiment=racing([RATE, RATE, RATE]), workers=2)
    assert [number for number, _ in noted.asked] == [3, 4]


def test_a_study_on_a_virtual_clock_asks_nothing_ahead(fast_path: Path) -> None:
    noted = Noted(seconds=0.12)
    noted.study(fast_path, 4, pool=SimPool(race, 1))
    assert all(
        number == len(shown) and all(t.ended for t in shown) for number, shown in noted.asked
    )


@pytest.mark.parametrize("sampler", ["tpe", "convergence", "policy", "cmaes"])
def test_every_kind_of_sampler_can_be_asked_ahead(
    sampler: str, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggester, "SLOW_SECONDS", 0.0)
    made = at.Experiment("ahead", lambda _: None, RATES, racing([1.0]).target)
    result = simulate(
        made, fast_path, 16, pool=RealTime(race, 3), sampler=sampler, pruner="slower_than_best"
    )
    assert len(result.trials) == 16
    points = [t.params["rate"] for t in result.trials if t.params]
    assert len(set(points)) == 16, "no point is drawn twice"
