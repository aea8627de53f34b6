"""Racing on a virtual clock: the leader is run again while the study searches."""

from __future__ import annotations

import io
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noisy_race import MISSED, SAMPLER, noisy_curve, outcome_of, put, reached, study
from sims import METRIC, lines, memory, racing

import autotune as at
from autotune.algorithms.pruners.rules import slower_than_best
from autotune.algorithms.ranking.best import best as best_trial
from autotune.algorithms.ranking.best import by_expected_result
from autotune.algorithms.ranking.confirmation import raced
from autotune.algorithms.ranking.finalists import finalists
from autotune.algorithms.ranking.racing import MOST, cost, due, for_pruning, given_up
from autotune.algorithms.ranking.repeats import confirming, with_mean_times
from autotune.backends.simulator import SimCurve
from autotune.cli import final, text
from autotune.evaluation import summary as documents
from autotune.storage.journal import JOURNAL
from autotune.study.driver.decisions import decide
from autotune.study.manifest import Manifest
from autotune.trial import (
    INTERRUPTED_REASONS,
    Clock,
    Hardware,
    Params,
    Report,
    State,
    Trial,
    undisturbed,
)

TARGET = at.Target(METRIC, 1.0, limit=30)


def race(number: int, of: int, seconds: float, **more: Any) -> Trial:
    return reached(number, seconds, kind="race", repeats=of, **more)


def runs(trials: Sequence[Trial]) -> Counter[int]:
    """How often each searched trial's configuration has been run, with those that still run."""
    counted = (t for t in trials if t.reason not in INTERRUPTED_REASONS)
    return Counter(t.number if t.repeats is None else t.repeats for t in counted)


# --- the rule -------------------------------------------------------------------------------------


def test_the_leader_is_raced_as_soon_as_its_share_allows() -> None:
    trials = [reached(0, 10.0), reached(1, 4.0)]
    assert due(trials, TARGET, 0.0) is None
    assert due(trials, TARGET, 0.2) is None, "4 s are more than a fifth of 14"
    assert due(trials, TARGET, 0.3) is trials[1]
    running = replace(race(2, 1, 1.0), state=State.RUNNING, reason="")
    assert due([*trials, running], TARGET, 0.3) is None, "a race that runs will take as long again"
    trials += [race(2, 1, 9.0)]
    assert [t.seconds for t in with_mean_times(trials, TARGET)] == [10.0, 6.5]
    leading = due(trials, TARGET, 0.9)
    assert leading is not None
    assert (leading.number, leading.seconds) == (1, 6.5)


def test_who_was_merely_lucky_falls_back_and_the_next_is_raced() -> None:
    trials = [reached(0, 10.0), reached(1, 4.0), reached(2, 5.0), race(3, 1, 9.0)]
    leading = due(trials, TARGET, 0.9)
    assert leading is not None
    assert leading.number == 1, "5 s in a single run are no less than 6.5 in two"
    trials[3] = race(3, 1, 12.0)
    assert due(trials, TARGET, 0.9) is trials[2], "but they may be less than 8"


def test_a_leader_is_run_so_often_and_no_more() -> None:
    trials = [reached(0, 10.0), reached(1, 4.0)]
    trials += [race(2 + i, 1, 4.5) for i in range(MOST - 2)]
    assert runs(trials)[1] == MOST - 1
    assert due(trials, TARGET, 0.9) is not None
    trials += [race(2 + MOST, 1, 4.5)]
    assert due(trials, TARGET, 0.9) is None


def test_a_baseline_has_three_runs_before_others_are_raced() -> None:
    """Its single run was the first of a cold worker, and was all that was known of it."""
    baseline = reached(0, 10.0, kind="baseline")
    trials = [baseline, reached(1, 6.0)]
    for number, seconds in ((2, 8.0), (3, 8.0)):
        leading = due(trials, TARGET, 0.9)
        assert leading is not None
        assert leading.number == 0
        trials.append(race(number, 0, seconds))
    leading = due([*trials, reached(4, 1.0)], TARGET, 0.9)
    assert leading is not None
    assert leading.number == 4
    running = [replace(t, state=State.RUNNING, reason="") if t.repeats == 0 else t for t in trials]
    leading = due([*running, reached(4, 1.0)], TARGET, 5.0)
    assert leading is not None
    assert leading.number == 4, "two that run are enough"


@pytest.mark.parametrize("kind", ["baseline", "trial"])
def test_who_was_twice_as_fast_is_run_again_though_the_limit_is_far(kind: str) -> None:
    """A run that may miss should take long there, and only another run shows that it does not."""
    far = replace(TARGET, limit=450.0)
    first = reached(0, 20.0, kind=kind)
    trials = [first, race(1, 0, 20.0), race(2, 0, 22.0), race(3, 0, 21.0), reached(4, 10.0)]
    trials += [reached(5, 19.0)]
    for number in range(6, 8):
        leading = due(trials, far, 0.9)
        assert leading is not None
        assert leading.number == 4
        trials.append(race(number, 4, 10.0 + 0.5 * number))
    best = best_trial(trials, far)
    assert best is not None
    assert best.number == 4


def test_a_baseline_that_is_far_behind_or_missed_the_target_is_not_raced() -> None:
    for seconds, more in ((10.0, {}), (5.0, MISSED)):
        baseline = reached(0, seconds, kind="baseline", **more)
        leading = due([baseline, reached(1, 3.0)], TARGET, 0.9)
        assert leading is not None
        assert leading.number == 1


def test_nothing_is_raced_before_the_target_was_reached() -> None:
    assert due([reached(0, 10.0, **MISSED)], TARGET, 0.9) is None


def test_who_stops_others_has_been_run_again() -> None:
    """By the mean of its runs."""
    trials = [reached(0, 10.0), reached(1, 4.0), race(2, 0, 12.0)]
    assert [t.seconds for t in for_pruning(trials, TARGET)] == [11.0, 11.0]
    running = Trial(5, {}, seconds=10.9)
    assert slower_than_best()(running, for_pruning(trials, TARGET), TARGET) is None
    stop = slower_than_best()(replace(running, seconds=11.0), for_pruning(trials, TARGET), TARGET)
    assert stop is not None
    assert stop.reason == "capped"
    trials += [race(3, 1, 6.0)]
    seen = [t.seconds for t in for_pruning(trials, TARGET)]
    assert seen == [11.0, 5.0]
    other = reached(4, 2.0, hardware=Hardware("faster"))
    assert for_pruning([*trials, other], TARGET)[2] is other


def test_without_luck_three_races_are_enough_for_a_study() -> None:
    trials = [reached(0, 10.0), race(1, 0, 10.0), race(2, 0, 10.0), reached(3, 6.0)]
    assert due(trials, TARGET, 0.9) is trials[3]
    assert for_pruning(trials, TARGET)[1].seconds == 10.0
    trials += [race(4, 3, 6.01)]
    assert due(trials, TARGET, 0.9) is None
    assert for_pruning([*trials, reached(5, 4.0)], TARGET)[2].seconds == 4.0
    trials += [race(5, 0, 10.0), race(6, 3, 6.5)]
    assert due(trials, TARGET, 0.9) is not None, "there is luck after all"


def test_a_repeated_trial_is_best_unless_a_single_run_leads_by_more_than_the_noise() -> None:
    """Trial 1 took 4, 8 and 9 s: the mean is 1.75 times its first time."""
    trials = [reached(0, 10.0), reached(1, 4.0), race(2, 1, 8.0), race(3, 1, 9.0), reached(4, 5.0)]
    assert by_expected_result(trials, TARGET)[0].number == 1, "5 s may well be 9 s another time"
    assert best_trial(trials, TARGET) is trials[1]
    assert [t.number for t in finalists(trials, TARGET, 2)] == [1, 4]
    trials += [reached(5, 2.5)]
    assert best_trial(trials, TARGET) is trials[1], "a single run may be followed by misses"
    trials += [race(6, 5, 3.0)]
    assert best_trial(trials, TARGET) is trials[5], "no luck so far was worth 4.25 s of 7"
    trials += [race(7, 5, 30.0, **MISSED)]
    assert best_trial(trials, TARGET) is trials[1]


def test_one_race_shows_that_its_trial_does_not_always_miss_and_little_more() -> None:
    trials = [reached(0, 10.0), reached(1, 4.0), race(2, 1, 6.0), reached(3, 4.5)]
    assert best_trial(trials, TARGET) is trials[1], "4.5 s may be followed by misses"
    trials += [reached(4, 2.0)]
    assert best_trial(trials, TARGET) is trials[1], "and 2 s no less"
    trials += [race(5, 4, 3.0)]
    assert best_trial(trials, TARGET) is trials[4]


def test_where_most_leaders_missed_the_target_again_only_repeats_count() -> None:
    trials = [reached(0, 9.0), race(1, 0, 10.0), race(2, 0, 10.0), reached(3, 2.0)]
    for leader in (4, 7):
        trials += [reached(leader, 3.0)]
        trials += [race(leader + i, leader, 30.0, **MISSED) for i in (1, 2)]
    numbers = [t.number for t in by_expected_result(trials, TARGET)]
    assert numbers == [0, 3, 4, 7], "2 s may well be 7 times as many"


def test_who_misses_in_one_of_three_runs_falls_behind_who_does_not() -> None:
    trials = [reached(0, 6.0), race(1, 0, 7.0), race(2, 0, 8.0)]
    trials += [reached(3, 4.0), race(4, 3, 4.0), race(5, 3, 30.0, **MISSED)]
    assert [t.seconds for t in with_mean_times(trials, TARGET)] == [7.0, 38.0 / 3]
    assert best_trial(trials, TARGET) is trials[0], "by the median it would be trial 3"


def test_a_first_run_that_took_no_time_gives_no_estimate_of_the_noise() -> None:
    trials = [reached(0, 0.0), race(1, 0, 5.0), race(2, 0, 4.0), reached(3, 0.2)]
    assert [t.number for t in by_expected_result(trials, TARGET)] == [0, 3]
    trials += [race(4, 3, 0.2)]
    assert [t.number for t in by_expected_result(trials, TARGET)] == [3, 0]


def test_a_trial_that_runs_on_has_missed_nothing_yet() -> None:
    trials = [replace(reached(0, 3.0), state=State.RUNNING, reason=""), race(1, 0, 20.0)]
    assert with_mean_times(trials, TARGET)[0] is trials[0]


def test_without_repeats_every_trial_has_its_own_time() -> None:
    trials = [reached(0, 10.0), reached(1, 4.0)]
    assert all(a is b for a, b in zip(for_pruning(trials, TARGET), trials, strict=True))


def test_a_leader_that_missed_the_target_again_has_reached_it_all_the_same() -> None:
    trials = [reached(0, 10.0, **MISSED), reached(1, 4.0), race(2, 1, 30.0, **MISSED)]
    known = with_mean_times(trials, TARGET)[1]
    assert (known.state, known.seconds) == (State.REACHED, 17.0)
    assert best_trial(trials, TARGET) is trials[1]


# --- studies --------------------------------------------------------------------------------------


class Watching:
    """Random search that keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[Trial, ...]] = []

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        self.shown.append(tuple(trials))
        return {"rate": 1.0 + number % 7}


@given(st.integers(1, 5), st.sampled_from([0.1, 0.3, 0.6]), st.integers(0, 99))
@settings(max_examples=8)
@pytest.mark.slow
def test_races_take_their_share_and_no_sampler_sees_them(
    workers: int, share: float, seed: int
) -> None:
    watching = Watching()
    with memory() as folder:
        found = study(folder, 20, workers=workers, seed=seed, racing=share, sampler=watching)
    races = [t for t in found.trials if t.kind == "race"]
    assert len(found.searched) == 20
    assert races
    assert all(t.params is None for t in races)
    assert len({t.seed for t in found.trials}) == len(found.trials)
    last = max(cost(t) for t in found.trials)
    spent, raced = sum(map(cost, found.trials)), sum(map(cost, races))
    assert raced <= share * spent + (1 + workers) * last, "what is running may take longer"
    assert max(runs(found.trials).values()) <= MOST
    assert all(t.repeats is None for shown in watching.shown for t in shown)
    for shown in watching.shown:
        ended = [t for t in shown if t.ended]
        known = {t.number: t.seconds for t in found.searched}
        assert all(t.seconds >= 0 for t in ended)
        assert {t.number for t in ended} <= known.keys()
    assert found.best is not None
    first = found.ranked()[0]
    assert first.number == found.best.number, "the best is who stands best, not the luckiest"
    assert found.confirmed == (), "a race was part of the choice and proves nothing"


def test_races_begin_with_the_search(fast_path: Path) -> None:
    found = study(fast_path, 40, workers=4, racing=0.5)
    first = min(t.number for t in found.trials if t.kind == "race")
    assert first < 10
    plain = study(fast_path / "plain", 40, workers=4)
    before = [[outcome_of(t) for t in one.trials[:first]] for one in (found, plain)]
    assert before[0] == before[1]


def test_status_tells_what_races_have_cost(fast_path: Path) -> None:
    """It counts the trials of the search, and said nothing of the others that it adds up."""
    found = study(fast_path, 24, racing=0.2)
    output = io.StringIO()
    summary = {**documents.summary(found, "x"), "trials_planned": 24, "driver_alive": False}
    text.print_status(summary, output)
    races = sum(t.spent_seconds for t in found.trials if t.kind == "race")
    said = f"spent: {found.spent_seconds:.0f} s, {races:.0f} s of it on repeats"
    assert races
    assert f"  {said}\n" in output.getvalue()


def test_what_races_say_of_the_best_stands_beside_its_own_time(fast_path: Path) -> None:
    """Its own time is the one for which it was chosen; only that was shown."""
    found = study(fast_path, 40, racing=0.2)
    assert found.best is not None
    own = [t for t in found.trials if found.best.number in (t.number, t.repeats)]
    mean = statistics.fmean(t.seconds for t in own)
    assert len(own) >= 3
    assert all(t.state is State.REACHED for t in own)
    said = f"{mean:.2f} s as the mean of {len(own)} runs in the search"
    shown, status = io.StringIO(), io.StringIO()
    final.print_result(found, Manifest.read(fast_path), shown)
    summary = {**documents.summary(found, "x"), "trials_planned": 40, "driver_alive": False}
    text.print_status(summary, status)
    best = f"Best: trial {found.best.number} in {found.best.seconds:.2f} s"
    assert f"{best}, {said} ({len(own)} of {len(own)} reached); " in shown.getvalue()
    assert f"  run again: {said} (" in status.getvalue()
    assert documents.best(found)["raced"]["trials"] == [t.number for t in own]


def test_what_is_given_comes_first(fast_path: Path) -> None:
    """Whoever gives configurations counts on their numbers and, with no others, on no more."""
    rates = [5.0, 4.0, 3.0, 2.5, 2.0, 1.9, 1.8, 1.7]
    given = racing(rates, limit=30)
    alone = study(fast_path / "alone", 8, experiment=given, racing=0.6, workers=1)
    assert [t.config["rate"] for t in alone.trials] == rates
    more = study(fast_path / "more", 20, experiment=given, racing=0.6, workers=1)
    assert [t.config["rate"] for t in more.trials][:8] == rates
    assert any(t.kind == "race" for t in more.trials[8:])


def test_races_are_no_confirmations_and_both_can_be(fast_path: Path) -> None:
    found = study(fast_path, 10, racing=0.5, repeats=2)
    races = {t.number for t in found.trials if t.kind == "race"}
    confirming_numbers = {t.number for c in found.confirmed for t in c.runs}
    assert races
    assert confirming_numbers == {t.number for t in confirming(found.trials)}
    assert not races & confirming_numbers
    assert {len(c.runs) for c in found.confirmed} == {2}


def test_a_resumed_study_goes_on_with_its_races(fast_path: Path) -> None:
    assert any(t.kind == "race" for t in study(fast_path, 24, racing=0.2).trials)
    assert Manifest.read(fast_path).options.racing == 0.2


def test_no_racing_is_the_study_as_it_was(fast_path: Path) -> None:
    study(fast_path / "a", 12, sampler=SAMPLER)
    study(fast_path / "b", 12, sampler=SAMPLER, racing=0.0)
    assert lines(fast_path / "a") == lines(fast_path / "b")
    study(fast_path / "c", 12, sampler=SAMPLER, racing=0.5)
    study(fast_path / "d", 12, sampler=SAMPLER, racing=0.5)
    assert lines(fast_path / "c") == lines(fast_path / "d") != lines(fast_path / "a")


@pytest.mark.slow
def test_a_driver_killed_while_it_raced_goes_on_to_the_same_study(fast_path: Path) -> None:
    options: dict[str, Any] = {"workers": 1, "racing": 0.4, "sampler": SAMPLER}
    known = [outcome_of(t) for t in study(fast_path, 10, **options).trials]
    rows = (fast_path / JOURNAL).read_bytes().splitlines(keepends=True)
    races = [i for i, row in enumerate(rows) if b'"kind":"race"' in row]
    assert len(races) >= 2
    for cut in {row + more for row in races[:2] for more in (0, 1, 2, 5)}:
        with memory() as folder:
            put(folder, b"".join(rows[:cut]))
            found = study(folder, 10, **options)
            assert [outcome_of(t) for t in found.trials] == known, f"cut after line {cut}"


@pytest.mark.parametrize("sampler", ["tpe", "convergence", "policy", "policy:elite"])
def test_every_sampler_takes_a_rank_that_changes(sampler: str, fast_path: Path) -> None:
    found = study(fast_path, 24, sampler=sampler, racing=0.4, workers=4)
    assert len(found.searched) == 24
    assert any(t.kind == "race" for t in found.trials)


def test_optuna_gets_the_mean(fast_path: Path) -> None:
    from autotune.algorithms.samplers.optuna import OptunaSampler

    experiment = racing([1.0], limit=30)
    sampler = OptunaSampler("tpe", experiment.space, TARGET, 0)
    trials = [reached(0, 10.0, rate=2), reached(1, 4.0, rate=3)]
    sampler.ask(2, trials)
    trials += [race(3, 1, 9.0)]
    sampler.ask(4, with_mean_times(trials, TARGET))
    values = [t.value for t in sampler._study.get_trials(deepcopy=False) if t.state.is_finished()]
    assert sorted(values) == [6.5, 10.0]


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan"), "0.1", True])
def test_a_share_out_of_range_is_refused(share: Any, fast_path: Path) -> None:
    with pytest.raises(at.UserError, match="racing must be a share, at least 0 and below 1"):
        study(fast_path / "study", 4, racing=share)
    assert not (fast_path / "study").exists()


def test_no_pruner_stops_a_race(fast_path: Path) -> None:
    found = study(fast_path, 40, racing=0.6, seed=2, workers=2, pruner="slower_than_best")
    races = [t for t in found.trials if t.kind == "race"]
    assert {t.reason for t in races} <= {"target", "limit"}
    assert any(t.reason == "capped" for t in found.trials)
    assert best_trial(found.trials, found.target) == found.best
    lucky = min(t.seconds for t in found.searched if t.succeeded)
    assert any(t.seconds > lucky for t in races)


# --- races that are given up ----------------------------------------------------------------------


def running(seconds: float, **more: Any) -> Trial:
    shown = {"kind": "race", "repeats": 0, "state": State.RUNNING, "reason": "", **more}
    return reached(1, seconds, **shown)


@pytest.mark.parametrize(
    ("again", "first", "target", "late"),
    [
        (running(11.99), reached(0, 4.0), TARGET, False),
        (running(12.0), reached(0, 4.0), TARGET, True),
        (running(25.0, kind="confirm"), reached(0, 4.0), TARGET, False),
        (running(25.0), reached(0, 4.0, **MISSED), TARGET, False),  # a disturbed one, run again
        (running(25.0, hardware=Hardware("slow")), reached(0, 4.0), TARGET, False),
        (running(25.0), reached(0, 0.0), TARGET, False),
        (running(25.0), reached(0, 4.0, state=State.COMPLETED), at.Target(METRIC, limit=30), False),
    ],
)
def test_a_race_is_given_up_at_three_times_the_first_run(
    again: Trial, first: Trial, target: at.Target, late: bool
) -> None:
    stop = given_up(again, first, target)
    assert (stop is not None) is late
    if stop is not None:
        assert (stop.reason, stop.detail) == ("capped", "3 times the 4.00 s of trial 0")


def test_on_a_clock_of_steps_it_is_given_up_by_steps() -> None:
    target = at.Target(METRIC, 1.0, clock="steps", limit_steps=9000)
    stop = given_up(running(3600.0), reached(0, 1200.0), target)
    assert stop is not None
    assert stop.detail == "3 times the 1,200 steps of trial 0"
    assert given_up(running(3599.0), reached(0, 1200.0), target) is None


def test_seconds_in_which_a_race_or_its_first_run_waited_do_not_give_it_up() -> None:
    def came(seconds: float, waited: float) -> dict[str, Any]:
        at_end = Report(1, seconds, {METRIC: 0.5}, Clock(train=seconds), waited)
        return {"reports": (at_end,)}

    pruner = slower_than_best()
    first = reached(0, 4.0)
    assert decide(running(15.0, **came(15.0, 4.0)), [], TARGET, pruner, first) is None, "11 s"
    ended = decide(running(16.5, **came(16.5, 4.0)), [], TARGET, pruner, first)
    assert ended is not None
    assert (ended[0], ended[1].reason) == (State.CENSORED, "capped")
    waited = replace(reached(0, 8.0), reports=came(8.0, 4.0)["reports"])
    assert undisturbed(waited).seconds == 4.0
    again = running(13.0, **came(13.0, 0.0))
    ended = decide(again, [], TARGET, pruner, undisturbed(waited))
    assert ended is not None
    assert ended[1].detail == "3 times the 4.00 s of trial 0"


def often_missing(config: Any, seed: int) -> SimCurve:
    """As `noisy_curve`, but every third run stays below the target."""
    curve = noisy_curve(config, seed)
    if seed % 3:
        return curve
    points = [replace(p, metrics={METRIC: min(p.metrics[METRIC], 0.9)}) for p in curve.points]
    return SimCurve(points)


def test_a_race_that_was_given_up_counts_as_the_limit(fast_path: Path) -> None:
    found = study(fast_path, 24, curve=often_missing, racing=0.4, workers=2)
    first = {t.number: t for t in found.searched}
    late = [t for t in found.trials if t.kind == "race" and t.reason == "capped"]
    assert late
    for trial in late:
        assert trial.repeats is not None
        most = 3 * first[trial.repeats].seconds
        assert most <= trial.seconds < most + 1.0, "at the next report"
        runs = raced(first[trial.repeats], found.trials, found.target)
        assert runs is not None
        assert runs.results[runs.runs.index(trial)] == found.target.horizon
    assert all(t.seconds < 3 * first[t.repeats].seconds for t in found.trials
               if t.kind == "race" and t.succeeded and t.repeats is not None)  # fmt: skip


def test_a_driver_killed_at_any_line_gives_up_the_same_races(fast_path: Path) -> None:
    options: dict[str, Any] = {"workers": 1, "racing": 0.4, "curve": often_missing}
    known = [outcome_of(t) for t in study(fast_path, 10, **options).trials]
    rows = (fast_path / JOURNAL).read_bytes().splitlines(keepends=True)
    late = [i for i, row in enumerate(rows) if b"times the" in row]
    assert late
    for cut in {row + more for row in late for more in (-9, -1, 0, 1)}:
        with memory() as folder:
            put(folder, b"".join(rows[:cut]))
            found = study(folder, 10, **options)
            assert [outcome_of(t) for t in found.trials] == known, f"cut after line {cut}"
