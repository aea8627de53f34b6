"""Disturbed trials: whom they limit, what samplers see of them, and which is run again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from noisy_race import reached
from sims import METRIC, lines, race, racing, simulate

import autotune as at
from autotune.algorithms.pruners.rules import make_pruner
from autotune.algorithms.ranking.best import best, by_result
from autotune.algorithms.ranking.confirmation import raced
from autotune.algorithms.ranking.disturbed import as_pruners_see, to_run_again
from autotune.algorithms.ranking.repeats import with_mean_times
from autotune.backends.simulator import SimCurve
from autotune.storage.journal import JOURNAL
from autotune.study.driver.decisions import decide
from autotune.tracking.projection import Projection
from autotune.tracking.run_content import STUDY, read_study_info
from autotune.trial import Clock, Report, State, Trial, incumbent

TARGET = at.Target(METRIC, 1.0, limit=100)


def run(number: int, seconds: float, waited: float = 0.0, **more: Any) -> Trial:
    """A trial that came evenly to the target (or, unless it reached it, half as far)."""
    whole = 1.0 if more.get("state", State.REACHED) is State.REACHED else 0.5
    reports = [
        Report(i, seconds * i / 10, {METRIC: whole * i / 10}, Clock(train=seconds * i / 10),
               waited * i / 10)
        for i in range(11)
    ]  # fmt: skip
    return reached(number, seconds, reports=tuple(reports), **more)


LATE = {"state": State.CENSORED, "reason": "limit"}


def seen(trials: list[Trial]) -> tuple[Trial, ...]:
    return as_pruners_see(with_mean_times(trials, TARGET), trials, TARGET)


# --- what decides ---------------------------------------------------------------------------------


def test_a_disturbed_trial_limits_no_other() -> None:
    trials = [run(0, 30.0), run(1, 20.0, 8.0), run(2, 40.0), run(3, 25.0)]
    fastest = incumbent(seen(trials))
    assert fastest is not None
    assert fastest.number == 3
    slow = replace(run(4, 22.0), state=State.RUNNING, reason="")
    assert make_pruner("slower_than_best")(slow, seen(trials), TARGET) is None


def test_where_most_were_disturbed_they_limit_others_by_the_time_that_they_took() -> None:
    trials = [run(n, 30.0 + n, 12.0) for n in range(4)]
    fastest = incumbent(seen(trials))
    assert fastest is not None
    assert (fastest.number, fastest.seconds) == (0, 30.0), "alone it took no longer"
    assert incumbent(seen(trials[:3])) is None, "too few to say so"


def test_samplers_get_a_disturbed_trial_by_the_time_that_it_would_have_taken_alone() -> None:
    quick, slow = with_mean_times([run(0, 30.0), run(1, 40.0, 15.0)], TARGET)
    assert (quick.seconds, slow.seconds) == (30.0, 25.0)
    assert slow.state is State.REACHED
    stopped = {**LATE, "reason": "capped"}
    (one,) = with_mean_times([run(0, 40.0, 15.0, **stopped)], TARGET)
    assert (one.state, one.seconds) == (State.CENSORED, 25.0)


def test_a_running_trial_is_not_stopped_for_seconds_in_which_it_waited() -> None:
    pruner = make_pruner("slower_than_best")
    others = [run(0, 20.0)]
    running = replace(run(1, 22.0, 6.0, **LATE), state=State.RUNNING, reason="")
    assert decide(running, others, TARGET, pruner) is None
    alone = replace(run(1, 22.0, **LATE), state=State.RUNNING, reason="")
    stopped = decide(alone, others, TARGET, pruner)
    assert stopped is not None
    assert stopped[1].reason == "capped"


# --- run again ------------------------------------------------------------------------------------


def test_the_disturbed_trial_that_may_be_the_fastest_is_run_again_once() -> None:
    trials = [run(0, 20.0), run(1, 30.0, 12.0), run(2, 40.0, 12.0)]
    again = to_run_again(trials, TARGET)
    assert again is not None
    assert (again.number, again.seconds) == (1, 18.0)
    trials += [run(3, 26.0, 8.0, kind="race", repeats=1)]
    assert to_run_again(trials, TARGET) is None, "once: the machine is busy still"
    assert to_run_again([run(0, 20.0), run(1, 30.0, 9.0)], TARGET) is None, "21 s alone"


def test_its_undisturbed_run_takes_its_place() -> None:
    trials = [run(0, 20.0), run(1, 30.0, 12.0), run(2, 17.0, kind="race", repeats=1)]
    known = with_mean_times(trials, TARGET)
    assert [t.seconds for t in known] == [20.0, 17.0]
    assert incumbent(seen(trials)) == known[1]
    assert best(trials, TARGET) is trials[1]
    again = raced(trials[1], trials, TARGET)
    assert again is not None
    assert [t.number for t in again.runs] == [2]
    slower = [*trials[:2], run(2, 25.0, kind="race", repeats=1)]
    assert best(slower, TARGET) is slower[0]


@pytest.mark.parametrize("leads", [False, True])
def test_one_that_came_too_late_is_run_again_if_it_was_ahead(leads: bool) -> None:
    """It was at 0.5 after 40 of its own seconds; the leader was there after 35 or 45."""
    trials = [run(0, 70.0 if leads else 90.0), run(1, 100.0, 60.0, **LATE)]
    again = to_run_again(trials, TARGET)
    assert (again is None) is leads
    assert to_run_again(trials[1:], TARGET) is not None, "nothing reached the target"
    trials += [run(2, 60.0, kind="race", repeats=1)]
    assert [t.number for t in by_result(trials, TARGET)] == [1, 0]
    first = best(trials, TARGET)
    assert first is not None
    assert (first.state, first.seconds) == (State.REACHED, 60.0)


def test_a_metric_is_spoilt_only_by_the_limit_in_seconds() -> None:
    """One that a trainer came to by itself is the same on a busy machine: nothing is run again."""
    done = {"state": State.COMPLETED, "reason": "finished"}
    trials = [run(0, 20.0, **done), run(1, 100.0, 40.0, **done)]
    trials[1] = replace(trials[1], reports=(*trials[1].reports, Report(
        11, 101.0, {METRIC: 0.9}, Clock(train=101.0), 40.0)))  # fmt: skip
    again = run(2, 10.0, kind="race", repeats=1, **done)
    for target in (at.Target(METRIC), at.Target(METRIC, limit=200)):
        assert trials[1].disturbed
        assert to_run_again(trials, target) is None
        assert target.result(with_mean_times([*trials, again], target)[1]) == -0.7, "of both runs"
    spoilt = at.Target(METRIC, limit=100)
    found = to_run_again([run(1, 100.0, 40.0, **{**done, "reason": "limit"})], spoilt)
    assert found is not None
    assert found.number == 1


# --- a study --------------------------------------------------------------------------------------


def disturbed_curve(slow: dict[float, float]) -> Any:
    """Curves of which those of some rates wait so many seconds for each that they train.

    Only with their own seed: other processes are there once.
    """
    seeds: dict[float, int] = {}

    def curve(config: dict[str, Any], seed: int) -> SimCurve:
        rate = config["rate"]
        first = seeds.setdefault(rate, seed) == seed
        share = slow.get(rate, 0.0) if first else 0.0
        points = race(config, seed).points
        late = [replace(p, seconds=p.seconds * (1 + share), waited=p.seconds * share)
                for p in points]  # fmt: skip
        return SimCurve(late)

    return curve


def test_a_study_runs_the_disturbed_leader_again_and_no_wrong_trial_is_stopped(
    tmp_path: Path,
) -> None:
    """Rate 2 needs 5 s and rate 1 needs 10; disturbed, rate 2 took 12."""
    rates = [1.0, 2.0, 0.5]
    result = simulate(racing(rates), tmp_path / "s", 3, disturbed_curve({2.0: 1.4}))
    assert [t.kind for t in result.trials] == ["baseline", "trial", "trial", "race"]
    slow, again = result.trials[1], result.trials[3]
    assert (slow.state, slow.disturbed, again.repeats) == (State.REACHED, True, 1)
    assert slow.seconds == pytest.approx(12.0)
    assert slow.cpu_share == pytest.approx(1 / 2.4)
    assert result.best is not None
    assert result.best.number == 1
    assert len(result.searched) == 3, "it is not counted"
    before = lines(tmp_path / "s")
    resumed = simulate(racing(rates), tmp_path / "s", 4, disturbed_curve({}))
    assert lines(tmp_path / "s")[: len(before)] == before
    assert [t.kind for t in resumed.trials][3:] == ["race", "trial"]


def test_the_result_and_mlflow_compare_the_mean_of_disturbed_runs(tmp_path: Path) -> None:
    """Rate 2 needs 5 s and, when it is run again, 6; it waits as long both times."""
    seeds: dict[float, int] = {}

    def curve(config: dict[str, Any], seed: int) -> SimCurve:
        first = seeds.setdefault(config["rate"], seed) == seed
        busy, slow = float(config["rate"] == 2.0), 1.0 if first else 1.2
        return SimCurve([
            replace(p, seconds=p.seconds * slow * (1 + busy), waited=p.seconds * slow * busy)
            for p in race(config, seed).points
        ])  # fmt: skip

    result = simulate(racing([1.0, 2.0, 0.5]), tmp_path, 3, curve)
    assert result.best is not None
    assert (result.best.number, result.trials[-1].kind) == (1, "race")
    assert result.speedup == pytest.approx(10 / 5.5)
    assert result.compared_runs == "the mean of 2 runs against one run"
    shown = Projection(read_study_info(tmp_path))
    for line in (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True):
        points = shown.take(line).get(STUDY, [])
    (own,) = [point.value for point in points if point.key == "speedup_vs_baseline"]
    assert own == result.speedup


@pytest.mark.parametrize("quiet", [False, True])
def test_it_waits_for_a_trial_that_nothing_disturbed_or_for_the_last(
    quiet: bool, tmp_path: Path
) -> None:
    """Else it would only be disturbed again. Rate 2 is the fastest, and the second to end."""
    busy = {1.0: 1.4, 2.0: 1.4, 0.5: 1.4, **({} if quiet else {0.4: 1.4})}
    pool = {"pruner": "none", "curve": disturbed_curve(busy)}
    result = simulate(racing([1.0, 2.0, 0.5, 0.4, 0.3]), tmp_path / "s", 5, **pool)
    (place,) = [n for n, t in enumerate(result.trials) if t.kind == "race"]
    assert place == (4 if quiet else 5)
    assert result.trials[place].repeats == 1
