"""The study's loop on a virtual clock, where every time is known beforehand."""

from __future__ import annotations

import json
import math
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sims import METRIC, RATES, RealTime, lines, race, racing, simulate, wide
from sims import learning as learn

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.storage import still_there
from autotune.storage.journal import JOURNAL
from autotune.study.result import read
from autotune.trial import Change, Ended, Event, Hardware, State, Target, Trial

REACHED, CENSORED, FAILED = State.REACHED, State.CENSORED, State.FAILED


def states(result: at.StudyResult) -> list[tuple[State, str, float]]:
    return [(t.state, t.reason, t.seconds) for t in result.trials]


# --- order and ends ---------------------------------------------------------------------------


def test_baseline_first_then_given_then_suggested(fast_path: Path) -> None:
    result = simulate(racing([1.0, 2.0, 4.0]), fast_path, 6)
    assert [t.number for t in result.trials] == list(range(6))
    assert [t.kind for t in result.trials] == ["baseline"] + ["trial"] * 5
    assert [t.config["rate"] for t in result.trials[:3]] == [1.0, 2.0, 4.0]
    assert result.ended == "done"
    assert result.baseline is result.trials[0]
    assert result.trials[3].config == result.trials[3].params
    assert len({t.seed for t in result.trials}) == 6
    started = [row["trial"] for row in lines(fast_path) if row["event"] == "started"]
    assert started == list(range(6))


def test_trials_is_a_total(fast_path: Path) -> None:
    for total in (2, 2, 5):
        assert len(simulate(racing([1.0]), fast_path, total).trials) == total
    with pytest.raises(at.UserError, match="has 5 trials already"):
        simulate(racing([1.0]), fast_path, 3)


def test_fewer_trials_than_given_configurations(fast_path: Path) -> None:
    assert len(simulate(racing([1.0, 2.0, 4.0]), fast_path, 2).trials) == 2


def test_capped_exactly_and_the_baseline_never(fast_path: Path) -> None:
    result = simulate(racing([2.0, 4.0, 2.0, 5.0, 3.4]), fast_path, 5)
    assert states(result) == [
        (REACHED, "target", 5.0),
        (REACHED, "target", 3.0),
        (CENSORED, "capped", 3.0),
        (REACHED, "target", 2.0),
        (CENSORED, "capped", 2.0),
    ]
    assert result.best is result.trials[3]
    assert result.speedup == 2.5
    assert [t.number for t in result.ranked()][:3] == [3, 1, 0]
    # a baseline that a faster trial overtakes is still measured to its end
    beside = simulate(racing([1.0, 5.0]), fast_path / "beside", 2, workers=2)
    assert states(beside) == [(REACHED, "target", 10.0), (REACHED, "target", 2.0)]


def test_reaching_the_target_wins_over_the_cap(fast_path: Path) -> None:
    result = simulate(racing([2.0, 2.0]), fast_path, 2)
    assert states(result) == [(REACHED, "target", 5.0)] * 2


def test_the_limit_censors_what_has_not_reached_the_target_by_then(fast_path: Path) -> None:
    result = simulate(racing([0.1, 1.0], limit=9.5), fast_path, 2)
    assert states(result) == [(CENSORED, "limit", 10.0)] * 2
    target = result.target
    scores = [target.score(t) for t in result.trials]
    assert scores[1] < scores[0]  # type: ignore[operator]
    assert result.best is None
    assert result.speedup is None


def test_a_reached_trial_is_always_below_the_limit(fast_path: Path) -> None:
    """Else it would score worse than a censored one."""
    for limit in (9.0, 9.5, 10.0, 10.5):
        result = simulate(racing([1.0], limit=limit), fast_path / str(limit), 1)
        trial = result.trials[0]
        assert trial.state is (REACHED if limit > 10 else CENSORED)


def test_diverged_finished_and_failed_carry_their_reasons(fast_path: Path) -> None:
    def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
        point = SimPoint(1, 1.0, {METRIC: 0.1, "train_loss": math.nan})
        ends = {
            1.0: SimCurve([replace(point, metrics={METRIC: 0.1})]),
            2.0: SimCurve([point, point]),
            3.0: SimCurve([replace(point, metrics={METRIC: 0.2})], end="ValueError: bad"),
        }
        return ends[config["rate"]]

    result = simulate(racing([1.0, 2.0, 3.0]), fast_path, 3, curve)
    assert states(result) == [
        (CENSORED, "finished", 1.0),
        (CENSORED, "diverged", 1.0),
        (FAILED, "ValueError: bad", 1.0),
    ]
    assert result.trials[1].detail == "train_loss is nan"
    assert result.trials[2].error == "ValueError: bad"


def test_confirm_takes_the_time_of_the_last_evaluation(fast_path: Path) -> None:
    values = [0.5, 1.0, 0.9, 1.0, 1.0, 0.2]
    points = [SimPoint(i, float(i), {METRIC: v}) for i, v in enumerate(values, 1)]
    target = Target(METRIC, 1.0, limit=50, confirm=2)
    result = simulate(racing([1.0], target=target), fast_path, 1, lambda c, s: SimCurve(points))
    assert states(result) == [(REACHED, "target", 5.0)]


def test_the_wall_clock_counts_evaluation(fast_path: Path) -> None:
    for clock, seconds in (("train", 5.0), ("wall", 8.0)):
        target = Target(METRIC, 1.0, limit=50, clock=clock)
        pool = SimPool(race, 1, eval_seconds=0.5)
        result = simulate(racing([2.0], target=target), fast_path / clock, 1, pool=pool)
        assert states(result) == [(REACHED, "target", seconds)]


class Looked(Mapping[str, float]):
    """Metrics that say when they are looked up."""

    def __init__(self, step: int, seen: list[int]) -> None:
        self.step, self.seen = step, seen

    def __getitem__(self, name: str) -> float:
        self.seen.append(self.step)
        return {METRIC: self.step / 10}[name]

    def __iter__(self) -> Iterator[str]:
        return iter([METRIC])

    def __len__(self) -> int:
        return 1


def test_metrics_are_looked_up_when_they_are_reported_and_not_before(fast_path: Path) -> None:
    seen: list[int] = []

    def curve(config: Any, seed: int) -> SimCurve:
        first, pace = (1, 10.0) if config["rate"] == 1.0 else (11, 1.0)
        points = [SimPoint(i + 1, pace * (i + 1), Looked(first + i, seen)) for i in range(4)]
        return SimCurve(points)

    target = Target(METRIC, 1.3, limit=50)
    result = simulate(racing([1.0, 2.0], target=target), fast_path, 2, curve, workers=2)
    assert states(result)[1] == (REACHED, "target", 3.0)
    assert seen == [11, 12, 13, 1, 2, 3, 4]  # in the order of time, and none after a stop


def test_a_broken_constraint_is_infeasible_and_never_started(fast_path: Path) -> None:
    rule = at.Constraint("rate below 3", lambda c: c["rate"] < 3)
    space = at.SearchSpace(RATES.entries, constraints=(rule,))
    result = simulate(racing([1.0, 5.0, 2.0], space=space), fast_path, 3)
    assert [t.state for t in result.trials] == [REACHED, State.INFEASIBLE, REACHED]
    infeasible = result.trials[1]
    assert (infeasible.reason, infeasible.detail) == ("constraint", "rate below 3")
    assert infeasible.attempts == 0
    assert result.target.score(infeasible) is None


# --- failures ---------------------------------------------------------------------------------


def dying(times: int) -> Any:
    """Each trial's worker dies after six seconds, so many times."""
    died: Counter[float] = Counter()

    def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
        whole = race(config, seed)
        died[config["rate"]] += 1
        return (
            replace(whole, points=whole.points[:7], end="died")
            if died[config["rate"]] <= times
            else whole
        )

    return curve


def test_a_trial_whose_worker_died_is_retried_from_its_checkpoint(fast_path: Path) -> None:
    policy = at.FailurePolicy(checkpoint_interval=4, max_retries=2)
    result = simulate(racing([1.0], failure=policy), fast_path, 1, dying(1))
    trial = result.trials[0]
    assert states(result) == [(REACHED, "target", 10.0)]
    assert (trial.attempts, trial.retries, trial.lost_seconds) == (2, 1, 2.0)
    assert [r.step for r in trial.reports] == list(range(0, 101, 10))
    events = [(r["event"], r["trial"]) for r in lines(fast_path) if "trial" in r]
    assert events.count(("suggested", 0)) == 1
    assert events.index(("saved", 0)) < events.index(("lost", 0))


def test_a_trial_that_dies_too_often_has_failed(fast_path: Path) -> None:
    policy = at.FailurePolicy(max_retries=2, checkpoint_interval=1000)
    result = simulate(racing([1.0, 2.0], failure=policy), fast_path, 2, dying(3))
    assert [t.state for t in result.trials] == [FAILED, REACHED]
    trial = result.trials[0]
    assert (trial.reason, trial.detail) == ("worker died", "3 attempts")
    assert (trial.attempts, trial.retries, trial.lost_seconds) == (3, 2, 12.0)
    assert trial.spent_seconds == 18.0


def failing(rates: Sequence[float]) -> Any:
    def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
        fails = config["rate"] in rates
        return SimCurve([], end="ValueError: bad") if fails else race(config, seed)

    return curve


def test_too_many_failed_trials_in_a_row_end_the_study(fast_path: Path) -> None:
    policy = at.FailurePolicy(max_consecutive_failed_trials=3)
    rates = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    experiment = racing(rates, failure=policy)
    with pytest.raises(at.StudyError, match="3 trials failed in a row; the last: ValueError: bad"):
        simulate(experiment, fast_path, 6, failing([2.0, 3.0, 4.0]))
    assert "3 trials failed" in lines(fast_path)[-1]["reason"]
    # a resumed study may go on, unless the next one fails as well
    again = simulate(experiment, fast_path, 6)
    assert [t.state for t in again.trials] == [REACHED, FAILED, FAILED, FAILED, REACHED, REACHED]


def test_a_user_s_mistake_in_the_trainer_ends_the_study_until_a_trial_has_reported(
    fast_path: Path,
) -> None:
    def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
        mistaken = SimCurve([], end="UserError: train.py called sys.exit(3)")
        return mistaken if config["rate"] == 2.0 else race(config, seed)

    with pytest.raises(at.UserError, match=r"^train\.py called sys\.exit\(3\)$"):
        simulate(racing([2.0, 1.0]), fast_path / "first", 2, curve)
    assert lines(fast_path / "first")[-1]["event"] == "closed"
    result = simulate(racing([1.0, 2.0]), fast_path / "later", 2, curve)
    assert [t.state for t in result.trials] == [REACHED, FAILED]


def test_failed_trials_that_are_not_in_a_row_do_not_end_it(fast_path: Path) -> None:
    policy = at.FailurePolicy(max_consecutive_failed_trials=2)
    rates = [1.0, 2.0, 3.0, 4.0, 5.0]
    result = simulate(racing(rates, failure=policy), fast_path, 5, failing([1.0, 3.0, 5.0]))
    assert [t.state for t in result.trials].count(FAILED) == 3


def test_running_trials_are_taken_up_after_a_study_error(fast_path: Path) -> None:
    policy = at.FailurePolicy(max_consecutive_failed_trials=1)
    experiment = racing([1.0, 2.0], failure=policy)

    def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
        whole = race(config, seed)
        return (
            whole if config["rate"] == 1.0 else replace(whole, points=whole.points[:3], end="bad")
        )

    with pytest.raises(at.StudyError):
        simulate(experiment, fast_path, 2, curve, workers=2)
    again = simulate(experiment, fast_path, 2)
    assert states(again)[0] == (REACHED, "target", 10.0)
    assert again.trials[0].retries == 0


def test_a_metric_that_is_never_reported_is_the_users_mistake(fast_path: Path) -> None:
    target = Target("val_acuracy", 1.0, limit=50)
    with pytest.raises(at.UserError) as error:
        simulate(racing([1.0], target=target), fast_path, 1)
    assert str(error.value) == (
        "unknown target metric 'val_acuracy'; did you mean 'val_accuracy'? (allowed: val_accuracy)"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trials": 0}, "trials must be a whole number >= 1 but got 0"),
        ({"trials": 2.0}, "trials must be a whole number >= 1 but got 2.0"),
        ({"time_limit": 0}, "time_limit must be more than 0 seconds (at most 1e9) but got 0"),
        ({"time_limit": "soon"}, "time_limit must be like 90s, 10m or 1h30m but got 'soon'"),
        ({"time_limit": "0s"}, "time_limit must be more than 0 seconds and at most 1e+09 but got"),
        (
            {"time_limit": math.nan},
            "time_limit must be more than 0 seconds (at most 1e9) but got nan",
        ),
        ({"seed": -1}, "seed must be a whole number >= 0 but got -1"),
        ({"sampler": "tpee"}, "unknown sampler 'tpee'; did you mean 'tpe'?"),
        ({"pruner": "ashaa"}, "unknown pruner 'ashaa'; did you mean 'asha'?"),
    ],
)
def test_wrong_arguments_are_the_users_mistake(
    fast_path: Path, options: dict[str, Any], says: str
) -> None:
    folder = fast_path / "study"
    with pytest.raises(at.UserError) as error:
        at.run(
            racing([1.0]),
            **{"trials": 1, "out": folder, "pool": SimPool(race), "tracking_uri": "off", **options},
        )
    assert str(error.value).startswith(says)
    assert not folder.exists()


# --- time, controllers, hardware --------------------------------------------------------------


def test_the_time_limit_censors_what_runs(fast_path: Path) -> None:
    experiment = racing([1.0, 0.1, 0.1])
    result = simulate(experiment, fast_path, 3, workers=2, time_limit=3.5)
    assert result.ended == "budget"
    assert states(result) == [(CENSORED, "budget", 4.0)] * 2
    assert lines(fast_path)[-1]["reason"] == "budget"
    resumed = simulate(experiment, fast_path, 3)
    assert states(resumed)[:2] == [(REACHED, "target", 10.0), states(result)[1]]
    assert len(resumed.trials) == 3


def test_a_controllers_change_is_passed_on(fast_path: Path) -> None:
    seen: list[tuple[int, Change | None]] = []

    class Listening(SimPool):
        def resume(self, trial: int, change: Change | None, save: Path | None) -> None:
            seen.append((trial, change))
            super().resume(trial, change, save)

    def halve(trial: Trial, others: Sequence[Trial], target: Target) -> Change | None:
        assert not any(o.number == trial.number for o in others)
        assert target.metric == METRIC
        return Change(lr_factor=0.5) if len(trial.reports) == 2 else None

    result = simulate(racing([5.0]), fast_path, 1, pool=Listening(race, 1), controller=halve)
    assert seen == [(0, None), (0, Change(lr_factor=0.5))]
    (trial,) = result.trials
    assert trial.changes == ((trial.reports[1].step, Change(lr_factor=0.5)),)
    assert read(fast_path, result.target).trials == result.trials  # it is in the journal


class Mixed(SimPool):
    """Every second trial runs on a shared core."""

    def start(self, launch: Any) -> Hardware:
        return replace(super().start(launch), shared=launch.trial % 2 == 1)


def test_shared_is_never_ranked_against_unshared(fast_path: Path) -> None:
    rates = [2.0, 10.0, 1.0, 5.0, 4.0]
    result = simulate(racing(rates), fast_path, 5, pool=Mixed(race, 1))
    assert states(result) == [
        (REACHED, "target", 5.0),
        (REACHED, "target", 1.0),
        (CENSORED, "capped", 5.0),  # by trial 0, not by the shared trial 1
        (CENSORED, "capped", 1.0),
        (REACHED, "target", 3.0),
    ]
    assert result.best is result.trials[4]


# --- samplers and the loop --------------------------------------------------------------------


class Recording:
    """A sampler that keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[Trial, ...]] = []

    def ask(self, number: int, trials: Sequence[Trial]) -> dict[str, float]:
        assert number == len(trials)
        self.shown.append(tuple(trials))
        return {"rate": 1.0 + number}


def test_given_seeds_make_confirmations_of_given_and_of_suggested_trials(fast_path: Path) -> None:
    result = simulate(racing([1.0]), fast_path, 3, sampler=Recording(), seeds=(7, 8, 9))
    assert [(t.kind, t.seed, t.params) for t in result.trials] == [
        ("confirm", seed, None) for seed in (7, 8, 9)
    ]
    assert [t.config["rate"] for t in result.trials] == [1.0, 2.0, 3.0]


def test_the_sampler_knows_ended_and_running_trials(fast_path: Path) -> None:
    sampler = Recording()
    simulate(racing([1.0]), fast_path, 6, sampler=sampler, workers=3)
    first, second, *_ = sampler.shown
    assert [(t.number, t.state) for t in first] == [(0, State.RUNNING)]
    assert [t.state for t in second] == [State.RUNNING] * 2
    assert [t.params for t in second] == [{"rate": 1.0}, {"rate": 2.0}]
    assert {t.state for t in sampler.shown[-1]} >= {State.RUNNING, REACHED}


class Exhausted(Recording):
    def ask(self, number: int, trials: Sequence[Trial]) -> Any:
        return super().ask(number, trials) if number < 3 else None


def in_time(work: Any, seconds: float) -> Any:
    """What `work` returns, failing rather than hanging the tests."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, f"not done in {seconds} s"
    return done[0]


def test_a_sampler_with_nothing_left_ends_the_study(fast_path: Path) -> None:
    study = lambda: simulate(racing([1.0]), fast_path, 9, sampler=Exhausted(), workers=2)  # noqa: E731
    result = in_time(study, 600)
    assert len(result.trials) == 3
    assert all(t.ended for t in result.trials)
    assert result.ended == "done"


def test_a_slow_sampler_delays_no_event(fast_path: Path) -> None:
    names: list[str] = []
    four = threading.Event()
    before: list[list[str]] = []

    class Slow(Recording):
        def ask(self, number: int, trials: Sequence[Trial]) -> dict[str, float]:
            assert four.wait(600), "the loop waits for the sampler"
            before.append([*names])
            return super().ask(number, trials)

    def watch(event: Any, trials: Any) -> None:
        names.append(type(event).__name__)
        if names.count("Reported") == 4:
            four.set()

    pool = RealTime(race, 2)
    simulate(racing([0.5]), fast_path, 3, pool=pool, sampler=Slow(), watch=watch)
    assert before[0].count("Suggested") == 1
    assert names.count("Ended") == 3


def test_a_realtime_study_with_nothing_left_ends(fast_path: Path) -> None:
    def study() -> at.StudyResult:
        return simulate(racing([1.0]), fast_path, 9, sampler=Exhausted(), pool=RealTime(race, 2))

    assert len(in_time(study, 600).trials) == 3


def test_a_samplers_error_is_raised_and_the_study_can_be_resumed(fast_path: Path) -> None:
    class Broken:
        def ask(self, number: int, trials: Sequence[Trial]) -> Any:
            raise ZeroDivisionError("sampler")

    with pytest.raises(
        at.StudyError, match=r"the sampler raised ZeroDivisionError at .*test_loop.py:\d+: sampler"
    ):
        simulate(racing([1.0]), fast_path, 3, sampler=Broken(), workers=2)
    assert all(t.ended for t in simulate(racing([1.0]), fast_path, 3).trials)


@pytest.mark.parametrize(
    ("setup", "step", "metrics", "limit", "warned"),
    [
        (0.0, 10, {METRIC: 0.1}, 60, True),
        (0.0, 0, {METRIC: 0.1}, 60, True),
        (0.5, 10, {METRIC: 0.1}, 60, False),
        (0.0, 0, {}, 60, False),
        (0.0, 10, {METRIC: 0.1}, None, False),
    ],
)
def test_a_set_up_on_the_clock_is_said_once(
    setup: float,
    step: int,
    metrics: Mapping[str, float],
    limit: float | None,
    warned: bool,
    fast_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not of what a function returns, nor where no seconds count."""
    points = [SimPoint(step, 0.5, metrics), SimPoint(20, 1.0, {METRIC: 0.9})]

    def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
        if config["rate"] == 1.0:
            return SimCurve([], returned=points[1])
        return SimCurve(points, setup_seconds=setup)

    goal = {"limit": 60} if limit else {"clock": "steps", "limit_steps": 60}
    experiment = racing([1.0, 2.0, 3.0], target=Target(METRIC, 0.8, **goal))
    simulate(experiment, fast_path, 3, pool=RealTime(curve, 1))
    said = [line for line in capsys.readouterr().err.splitlines() if "set-up is on" in line]
    assert len(said) == warned
    if warned:
        assert said[0].startswith("warning: the set-up is on the clock: trial 1's first report is")
        assert said[0].endswith("when the set-up is done: autotune.report(0, {})")


def test_a_metric_may_come_with_every_other_report_only(fast_path: Path) -> None:
    def sparse(config: Mapping[str, Any], seed: int) -> SimCurve:
        points = race(config, seed).points
        return SimCurve(
            [p if p.step % 50 == 0 else replace(p, metrics={"train_loss": 1.0}) for p in points]
        )

    result = simulate(racing([2.0, 1.0]), fast_path, 2, sparse)
    assert states(result) == [(REACHED, "target", 5.0), (CENSORED, "capped", 5.0)]


def test_a_metric_that_never_comes_is_reported_at_the_trials_end(fast_path: Path) -> None:
    def without(config: Mapping[str, Any], seed: int) -> SimCurve:
        return SimCurve([replace(p, metrics={"loss": 1.0}) for p in race(config, seed).points])

    with pytest.raises(at.UserError, match=r"unknown target metric 'val_accuracy' .allowed: loss"):
        simulate(racing([1.0], limit=8), fast_path, 2, without)
    ends = [row for row in lines(fast_path) if row["event"] == "ended"]
    assert [row["seconds"] for row in ends] == [8.0]


def returning(*values: Any) -> Any:
    """A trainer that reports nothing; each rate, from 1 on, is the place of what it returns."""

    def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
        value = values[int(config["rate"]) - 1]
        metrics = value if isinstance(value, dict) else {METRIC: value}
        return SimCurve([], returned=SimPoint(1, 2.0, metrics) if value is not None else None)

    return curve


def test_what_the_trainer_returns_reaches_the_target_or_not(fast_path: Path) -> None:
    result = simulate(racing([1.0, 2.0]), fast_path, 2, returning(1.0, 0.5))
    assert states(result) == [(REACHED, "target", 2.0), (CENSORED, "finished", 2.0)]
    assert result.trials[1].reports[-1].metrics == {METRIC: 0.5}


ADVICE = (
    "return it (a number, or a dict with it), or call "
    "autotune.report(step, {'val_accuracy': value})"
)


@pytest.mark.parametrize(
    ("values", "says", "ended"),
    [
        (
            [None, 1.0],
            f"the trainer ended and never reported the target's metric {METRIC!r}: {ADVICE}",
            1,
        ),
        (
            [{"val_acuracy": 1.0}, 1.0],
            "unknown target metric 'val_accuracy'; did you mean 'val_acuracy'? "
            "(allowed: val_acuracy): return it, or report it",
            1,
        ),
        (
            [math.nan] * 2,
            "the trainer returned 'val_accuracy' as nan in all of 2 trials: return a finite "
            "number, or raise an error if a configuration cannot be trained",
            2,
        ),
        ([math.inf] * 9, "the trainer returned 'val_accuracy' as inf in all of 5 trials", 5),
    ],
)
def test_a_trainer_that_ends_without_the_metric_ends_the_study(
    values: list[Any], says: str, ended: int, fast_path: Path
) -> None:
    rates = [1.0 + i for i in range(len(values))]
    with pytest.raises(at.UserError) as error:
        simulate(racing(rates), fast_path, len(rates), returning(*values))
    assert str(error.value).startswith(says)
    ends = [row for row in lines(fast_path) if row["event"] == "ended"]
    assert len(ends) == ended
    assert lines(fast_path)[-1] == {
        **lines(fast_path)[-1],
        "event": "closed",
        "reason": str(error.value),
    }


def test_a_returned_value_that_is_no_number_is_a_divergence(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = {METRIC: 0.5, "loss": math.nan}
    values = [math.nan, 0.5, loss, *[math.nan] * 6]
    rates = [1.0 + i for i in range(len(values))]
    result = simulate(racing(rates), fast_path, len(rates), returning(*values))
    assert {t.reason for t in result.trials[3:]} == {"diverged"}
    assert [(t.reason, t.detail) for t in result.trials[:3]] == [
        ("diverged", "val_accuracy is nan"),
        ("finished", "the trainer came to its end"),
        ("diverged", "loss is nan"),
    ]
    assert "returned" not in capsys.readouterr().err, "the line of its end says it"


@pytest.mark.parametrize("moved", [False, True])
def test_a_folder_that_is_deleted_or_moved_away_ends_the_study(
    moved: bool, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(still_there, "_SECONDS", 0.0)
    folder, away = fast_path / "study", fast_path / "away"

    def take_away(event: Event, trials: Mapping[int, Trial]) -> None:
        if len(trials) == 3 and folder.exists():
            folder.rename(away)
            if not moved:
                shutil.rmtree(away)

    with pytest.raises(at.StudyError, match="study was deleted or moved while its study ran"):
        simulate(racing([1.0, 2.0]), folder, 5, watch=take_away)
    assert not folder.exists()
    if moved:
        again = simulate(racing([1.0, 2.0]), away, 5)
        assert [t.ended for t in again.trials] == [True] * 5


def test_every_trial_failed(fast_path: Path) -> None:
    with pytest.raises(at.StudyError, match="every trial failed; the last: ValueError: bad"):
        simulate(racing([2.0, 3.0]), fast_path, 2, failing([2.0, 3.0]))


class Says:
    """A sampler that always proposes the same."""

    def __init__(self, point: Any) -> None:
        self.point = point

    def ask(self, number: int, trials: Sequence[Trial]) -> Any:
        return self.point


def raising(*_: Any) -> Any:
    raise KeyError("lr")


async def later(*_: Any) -> None: ...


LAMBDA: Any = lambda value: lambda *_: value  # noqa: E731
RULED = at.SearchSpace(RATES.entries, (at.Constraint("rule", LAMBDA(None)),))
WRONG = {  # what a study is given, and what it says then
    "pruner true": ({"pruner": LAMBDA(True)}, "the pruner must return Stop or None but got True"),
    "pruner text": (
        {"pruner": LAMBDA("slow")},
        "the pruner must return Stop or None but got 'slow",
    ),
    "pruner raises": (
        {"pruner": raising},
        r"the pruner raised KeyError at .*test_loop.py:\d+: 'lr'",
    ),
    "controller exits": (
        {"controller": lambda *_: sys.exit(0)},
        r"the controller raised SystemExit at .*test_loop.py:\d+: 0",
    ),
    "constraint raises": (
        {"space": at.SearchSpace(RATES.entries, (at.Constraint("rule", raising),))},
        r"the constraint 'rule' raised KeyError at .*test_loop.py:\d+: 'lr'",
    ),
    "pruner reason": (
        {"pruner": lambda *_: at.Stop(3)},
        "the pruner raised ValueError at .*: Stop rea",
    ),
    "controller": (
        {"controller": LAMBDA({"lr": 0.1})},
        "the controller must return Change or Fork or None but got {'lr': 0.1}",
    ),
    "change": (
        {"controller": lambda *_: Change("0.1")},
        "the controller raised ValueError at .*: Change lr_factor must be a finite number >= 0 but",
    ),
    "fork": (
        {"controller": lambda *_: at.Fork(0, 3)},
        "the controller raised ValueError at .*: Fork params must be a dict but got 3",
    ),
    "sampler list": (
        {"sampler": Says([1.0])},
        r"the sampler must return a dict of parameters.*\[1.0\]",
    ),
    "sampler name": (
        {"sampler": Says({"rat": 1.0})},
        "not in the search space: unknown parameter 'rat'",
    ),
    "sampler range": (
        {"sampler": Says({"rate": 1e9})},
        "not in the search space: rate must be a number",
    ),
    "sampler type": (
        {"sampler": Says({"rate": object()})},
        "search space: a object .* cannot be writ",
    ),
    "constraint": ({"space": RULED}, "constraint 'rule' must return True or False but got None"),
    "watch raises": ({"watch": raising}, r"the watch raised KeyError at .*test_loop.py:\d+: 'lr'"),
    "watch later": ({"watch": later}, "the watch must be a plain function but returned <coroutine"),
}


@pytest.mark.parametrize(("given", "says"), WRONG.values(), ids=WRONG)
def test_what_functions_return_and_raise_is_told_in_one_line(
    fast_path: Path, given: dict[str, Any], says: str
) -> None:
    """The study ends, its journal can be read, and a study with other functions goes on."""
    options = {**given}
    experiment = racing([1.0, 2.0], space=options.pop("space", RATES))
    with pytest.raises(at.UserError, match=says) as error:
        simulate(experiment, fast_path, 3, **options)
    assert "\n" not in str(error.value)
    result = read(fast_path, experiment.target)
    assert result.ended == str(error.value)
    again = simulate(racing([1.0, 2.0]), fast_path, 3)
    assert [t.state for t in again.trials if t.kind == "baseline"] == [REACHED]
    assert all(t.ended for t in again.trials)
    assert again.ended == "done"


def test_a_sampler_that_is_none_is_refused_at_once(fast_path: Path) -> None:
    with pytest.raises(at.UserError, match="sampler must be a name or a sampler but got <function"):
        simulate(racing([1.0]), fast_path / "study", 3, sampler=raising)
    assert not (fast_path / "study").exists()


def test_another_seed_or_scaling_is_another_study(fast_path: Path) -> None:
    simulate(racing([1.0]), fast_path, 1, seed=1)
    with pytest.raises(at.UserError, match="its seed is 1 and not 2"):
        simulate(racing([1.0]), fast_path, 1, seed=2)
    four = racing([1.0], scaling=at.Scaling(num_workers=4))
    with pytest.raises(at.UserError, match=r"its scaling.num_workers is 1 and not 4"):
        simulate(four, fast_path, 1, seed=1)


@pytest.mark.parametrize("sampler", ["random", "qmc", "tpe"])
def test_the_same_seed_gives_the_same_journal(fast_path: Path, sampler: str) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        simulate(wide(), fast_path / name, 25, learn, workers=4, sampler=sampler, seed=seed)
    first, second, other = (lines(fast_path / name) for name in "abc")
    assert first == second
    assert first != other


def test_sixty_trials_take_less_than_a_second(fast_path: Path) -> None:
    begin = time.thread_time()
    result = simulate(wide(), fast_path, 60, learn, workers=8)
    taken = time.thread_time() - begin
    assert len(result.trials) == 60
    assert taken < 10, f"{taken:.2f} s of a core (about 0.5 s on an idle machine)"


def test_watch_sees_every_event_after_it_is_written(fast_path: Path) -> None:
    seen: list[Any] = []

    def watch(event: Any, trials: Mapping[int, Trial]) -> None:
        rows = (fast_path / JOURNAL).read_bytes().splitlines()
        assert len(rows) == len(seen) + 2  # `opened` is the first line
        seen.append(event)
        if isinstance(event, Ended):
            assert trials[event.trial].state is event.state

    simulate(racing([5.0, 2.0]), fast_path, 2, watch=watch)
    assert len(seen) == len(lines(fast_path)) - 2


# --- what the result says ---------------------------------------------------------------------


def test_the_result_as_a_table(fast_path: Path) -> None:
    result = simulate(wide(), fast_path, 5, learn, workers=2)
    frame = result.to_frame()
    assert list(frame["trial"]) == list(range(5))
    assert frame["kind"][0] == "baseline"
    for row, trial in zip(frame.to_dict("records"), result.trials, strict=True):
        reached = trial.state is REACHED
        assert (row["time_to_target_seconds"] == trial.seconds) == reached
        assert (row["censored_at_seconds"] == trial.seconds) == (trial.state is CENSORED)
        assert isinstance(row["config.lr"], str)
    assert result.spent_seconds == pytest.approx(sum(frame["spent_seconds"]))


def test_others_are_never_the_trial_itself(fast_path: Path) -> None:
    def prune(trial: Trial, others: Sequence[Trial], target: Target) -> at.Stop | None:
        assert trial.number not in {o.number for o in others}
        assert trial.state is State.RUNNING
        return at.Stop("tired", "of it") if trial.seconds >= 3 else None

    result = simulate(racing([1.0, 1.0]), fast_path, 2, pruner=prune)
    assert states(result) == [(REACHED, "target", 10.0), (CENSORED, "tired", 3.0)]
    assert result.trials[1].detail == "of it"


def test_a_pruner_with_settings_goes_on_with_them(fast_path: Path) -> None:
    asked = {"pruner": "slower_than_best(factor=1.5)"}
    made = racing([1.0, 0.1, 0.1])
    simulate(made, fast_path, 2, **asked)
    manifest = json.loads((fast_path / "experiment.json").read_text())
    result = simulate(made, fast_path, 3, pruner=manifest["pruner"])
    assert states(result)[1:] == [(CENSORED, "capped", 15.0)] * 2


# --- what the trainer itself refuses ----------------------------------------------------------


def refusing(allowed: Mapping[str, Any], **more: Any) -> at.Experiment:
    """An experiment of the image trainer, which has a `check`."""
    from trainers.image import train

    fixed = {"data": "digits", "model": "resnet8", "optimizer": "sgd"}
    entries = {**{k: at.Fixed(v) for k, v in fixed.items()}, "lr": at.Float(0.01, 1), **allowed}
    target = at.Target("val_accuracy", 0.9, limit=10)
    return at.Experiment("refused", train, at.SearchSpace(entries), target, **more)


SIZES = {"image_size": at.ScheduleSpace(at.Int(4, 8, step=2), family="staircase", knots=1)}
SMALL = at.schedules.stages((1, 8), (1, 2))


@pytest.mark.parametrize(
    ("experiment", "says"),
    [
        (
            lambda: refusing(SIZES, baseline={"lr": 0.1, "image_size": SMALL}),
            "baseline: image_size",
        ),
        (
            lambda: refusing(SIZES, configs=[{"lr": 0.1, "image_size": SMALL}]),
            r"configs: image_size must be .*4.*, but value 2 of 2 \(from 50%\) is 2",
        ),
        (
            lambda: refusing({"sequence_length": at.Fixed(4)}),
            "the trainer refuses every configuration of the search space: .*sequence_length",
        ),
        (
            lambda: refusing({"beta1": at.ScheduleSpace(at.Float(0.8, 0.9))}),
            "the trainer refuses every .* space: beta1 is given but optimizer 'sgd'",
        ),
        (
            lambda: refusing({"batch_size": at.Fixed(at.Linear(64, 0))}),
            "refuses every configuration of the search space: batch_size .* goes down to 0",
        ),
    ],
)
def test_what_the_trainer_refuses_is_reported_before_anything_starts(
    experiment: Any, says: str, tmp_path: Path
) -> None:
    with pytest.raises(at.UserError, match=says) as error:
        at.run(experiment(), trials=2, out=tmp_path / "study")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "study").exists()


class Awkward(at.SearchSpace):
    """A space that cannot make a configuration of every point."""

    def config(self, params: Mapping[str, Any]) -> dict[str, Any]:
        if params["rate"] > 1.0:
            raise ValueError("momentum must lie in [0, 1)")
        return super().config(params)


def test_a_point_without_a_configuration_is_infeasible_and_the_study_goes_on(
    fast_path: Path,
) -> None:
    space = Awkward({"rate": at.Float(0.01, 100, log=True)})
    experiment = replace(racing([0.5]), space=space)
    result = simulate(experiment, fast_path, 12)
    bad = [t for t in result.trials if t.state is State.INFEASIBLE]
    assert 2 < len(bad) < 12
    assert all(t.config["rate"] > 1.0 for t in bad)
    assert bad[0].reason == "no configuration"
    assert bad[0].detail == "momentum must lie in [0, 1)"
    assert len(result.trials) == 12
    assert len(read(fast_path, result.target).trials) == 12


def test_points_that_break_a_constraint_are_not_counted_against_the_space(tmp_path: Path) -> None:
    from autotune.study.experiment import check_trainer

    allowed = {"image_size": at.Int(1, 8)}
    usual = refusing(allowed)
    rule = at.Constraint("image_size >= 4", lambda config: config["image_size"] >= 4)
    check_trainer(replace(usual, space=at.SearchSpace(usual.space.entries, (rule,))))
    never = at.Constraint("never", lambda config: False)
    check_trainer(replace(usual, space=at.SearchSpace(usual.space.entries, (never,))))


def test_a_trainers_check_that_raises_is_one_line() -> None:
    from autotune.study.experiment import check_trainer

    def train(config: dict[str, Any]) -> Any: ...

    train.check = lambda config: config["momentum"]  # type: ignore[attr-defined]
    line = r"the trainer's check raised KeyError at .*test_loop.py:\d+: 'momentum'"
    with pytest.raises(at.UserError, match=line):
        check_trainer(replace(racing([1.0]), train=train, baseline=None, configs=()))
