"""A trial index gives what a scan of all trials gives, at every event; so decisions are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_events import KINDS, random_event
from sims import learning, lines, simulate, wide

from autotune.algorithms.pruners.learning_curve import Lessons
from autotune.algorithms.pruners.rules import make_pruner
from autotune.algorithms.ranking.repeats import race_leader
from autotune.algorithms.ranking.trial_index import TrialIndex, failed_in_a_row, recent
from autotune.algorithms.samplers.optuna import TRIAL_LIMITS, OptunaSampler
from autotune.space.search_space import Float, SearchSpace
from autotune.study.driver.state import StudyState
from autotune.trial import Report, State, Target, Trial, after, incumbent

TARGET = Target("acc", 0.9, limit=100.0)


@given(st.integers(0, 10**6))
def test_a_trial_index_gives_what_a_scan_gives(seed: int) -> None:
    random, trials = Random(seed), dict[int, Trial]()
    trial_index, lessons = TrialIndex(trials, TARGET), Lessons()
    for turn in range(60):
        event = random_event(random, trials, float(turn // 2))  # two events at the same time
        before = trials.get(event.trial)
        trials[event.trial] = after(before, event)
        trial_index.note(before, trials[event.trial])
        everyone, trial = list(trials.values()), trials[event.trial]
        plain = [t for t in everyone if t.number != trial.number]
        others = trial_index.others(trial)
        assert (list(others), len(others)) == (plain, len(plain))
        assert others[:2] == tuple(plain[:2])
        for hardware in (None, *KINDS):
            assert incumbent(others, hardware) == incumbent(plain, hardware)
            assert trial_index.fastest(hardware) == incumbent(everyone, hardware)
        assert trial_index.leader() == race_leader(everyone, TARGET)
        idle = [t for t in everyone if not t.ended and not t.placed]
        assert trial_index.waiting() == (idle[0] if idle else None)
        assert [t.number for t in trial_index.running()] == [
            t.number for t in everyone if not t.ended
        ]
        for count in (1, 3, 1000):
            assert recent(others, count) == recent(plain, count)
            last = trial_index.last_ended(count)
            assert failed_in_a_row(last, count) == failed_in_a_row(everyone, count)
        known, all_known = (
            lessons.parameters(others, TARGET, 0.1),
            Lessons().parameters(everyone, TARGET, 0.1),
        )
        assert known == all_known
        again = TrialIndex(trials, TARGET)  # as a resumed driver makes it
        assert again.last_ended(5) == trial_index.last_ended(5)
        assert (again.leader(), again.waiting()) == (trial_index.leader(), trial_index.waiting())


@pytest.mark.parametrize(
    ("sampler", "pruner"),
    [
        ("random", "convergence"),
        ("convergence", "convergence"),
        ("tpe", "asha"),
        ("random", "hyperband"),
        ("random", "bottom_at_same_time"),
    ],
)
def test_a_study_decided_from_plain_lists_is_the_same(
    sampler: str, pruner: str, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def study(name: str) -> list[dict[str, Any]]:
        options = {"sampler": sampler, "pruner": pruner, "workers": 8, "seed": 1}
        simulate(wide(), fast_path / name, 40, learning, **options)
        return lines(fast_path / name)

    known = study("indexed")

    def plain(self: StudyState, trial: Trial) -> Sequence[Trial]:
        return [t for t in self.trials.values() if t.number != trial.number]

    monkeypatch.setattr(StudyState, "others", plain)
    assert study("plain") == known


def test_a_decision_looks_at_no_more_trials_in_a_longer_study() -> None:
    """What is far back changes nothing, and is not even looked at."""
    looked = 0

    class Counted(dict[str, float]):
        def __contains__(self, key: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(key)

    def stopped(number: int) -> Trial:
        reports = tuple(Report(i, float(i), Counted(acc=0.1 * i)) for i in range(1, 6))
        return Trial(number, {}, {}, state=State.CENSORED, reason="capped", reports=reports,
                     seconds=5.0, attempts=1, ended_at=float(number))  # fmt: skip

    looks = []
    for count in (1500, 6000):
        trials = {n: stopped(n) for n in range(count)}
        own = replace(stopped(count), state=State.RUNNING, reason="", ended_at=None, placed=True)
        trials[count] = own
        others, looked = TrialIndex(trials, TARGET).others(own), 0
        assert make_pruner("bottom_at_same_time")(own, others, TARGET) is None
        looks.append(looked)
    assert looks[0] == looks[1] > 0


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_a_sampler_gets_no_more_trials_than_it_can_use(name: str) -> None:
    """Of a long study the best trials and the newest; a short one is passed on as it is."""
    random, space = Random(0), SearchSpace({"x": Float(0, 1)})

    def trial(number: int) -> Trial:
        x = random.random()
        return Trial(number, {"x": x}, {"x": x}, state=State.REACHED, seconds=abs(x - 0.3) + 0.1,
                     attempts=1, ended_at=float(number))  # fmt: skip

    sampler = OptunaSampler(name, space, TARGET, 0)
    most = TRIAL_LIMITS[name]
    trials = [trial(n) for n in range(4 * most)]
    sizes = []
    for count in (most, most + 20, 2 * most, 4 * most):
        sampler.ask(count, trials[:count])
        done = [t for t in sampler._study.get_trials(deepcopy=False) if t.state.is_finished()]
        sizes.append(len(done))
    assert sizes == [most, most + 20, most, most]
    again = OptunaSampler(name, space, TARGET, 0)
    again.ask(4 * most, trials)
    seen = [t for t in again._study.get_trials(deepcopy=False) if t.state.is_finished()]
    numbers = {t.user_attrs["autotune.trial"] for t in seen}
    best = sorted(trials, key=lambda t: t.seconds)[: most // 2]
    assert len(numbers) == most
    assert {t.number for t in best} <= numbers
    assert len(numbers & set(range(3 * most, 4 * most))) >= most // 2
