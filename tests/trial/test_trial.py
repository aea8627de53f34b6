"""Events folded into trials, and the numbers that a target makes of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.algorithms.ranking.repeats import race_leader
from autotune.trial import (
    Change,
    Checkpoint,
    Clock,
    Ended,
    FailurePolicy,
    Fork,
    Hardware,
    Interrupted,
    Milestone,
    Report,
    Reported,
    Saved,
    Started,
    State,
    Stop,
    Suggested,
    Target,
    Trial,
    after,
    diverged,
    fold,
    incumbent,
    slowest,
)

CPU = Hardware("cpu")
SUGGESTED = Suggested(0, {"lr": 0.1}, {"lr": 0.1}, "trial", 7, at=1.0)


def report(step: int, seconds: float, value: float | None = None, **clock: float) -> Report:
    metrics = {} if value is None else {"acc": value}
    return Report(step, seconds, metrics, Clock(train=seconds, **clock))


def observed(*values: float, state: State = State.CENSORED, seconds: float = 3.0) -> Trial:
    reports = tuple(report(i, float(i), v) for i, v in enumerate(values, 1))
    return Trial(0, {}, state=state, reason="capped", seconds=seconds, reports=reports)


def running() -> Trial:
    return fold([SUGGESTED, Started(0, 2.0, CPU, at=3.0)])[0]


def test_a_trial_is_suggested_started_and_reports() -> None:
    trial = after(running(), Reported(0, report(10, 4.0, 0.5, setup=1.5), at=8.0))
    assert (trial.state, trial.placed, trial.attempts, trial.ended) == (
        State.RUNNING,
        True,
        1,
        False,
    )
    assert (trial.seed, trial.config, trial.params) == (7, {"lr": 0.1}, {"lr": 0.1})
    assert (trial.seconds, trial.queue_seconds, trial.hardware) == (4.0, 2.0, CPU)
    assert trial.clock == Clock(queue=2.0, setup=1.5, train=4.0)
    assert trial.spent_seconds == 5.0  # from 3 to 8: set-up, and waiting for decisions, too
    assert trial.time_to_target is None


@pytest.mark.parametrize("state", [s for s in State if s is not State.RUNNING])
def test_every_end_carries_its_reason_and_seconds(state: State) -> None:
    end = Ended(0, state, "why", 4.5, "numbers", "traceback", at=9.0)
    trial = after(running(), end)
    assert (trial.state, trial.reason, trial.detail, trial.error) == (
        state,
        "why",
        "numbers",
        "traceback",
    )
    assert (trial.ended, trial.placed, trial.seconds, trial.ended_at) == (True, False, 4.5, 9.0)
    assert trial.time_to_target == (4.5 if state is State.REACHED else None)


def test_events_that_cannot_follow_are_refused() -> None:
    with pytest.raises(ValueError, match="trial 0 is suggested twice"):
        fold([SUGGESTED, SUGGESTED])
    for event in (Started(3, 0.0, CPU), Reported(3, report(1, 1.0)), Interrupted(3, "died")):
        with pytest.raises(ValueError, match=r"trial 3: \w+ before it was suggested"):
            after(None, event)


def test_lost_goes_back_to_the_checkpoint_and_counts_what_is_lost() -> None:
    events = [
        SUGGESTED,
        Started(0, 2.0, CPU, at=3.0),
        Reported(0, report(10, 4.0, 0.4, setup=1.0), at=8.0),
        Saved(0, Checkpoint(10, "here", Clock(train=4.0, setup=1.0))),
        Reported(0, report(20, 8.0, 0.6, setup=1.0, checkpoint=0.5), at=13.0),
        Reported(0, report(30, 12.0, 0.7, setup=1.0, checkpoint=0.5), at=17.0),
        Interrupted(0, "worker died", at=20.0),
    ]
    trial = fold(events)[0]
    assert [r.step for r in trial.reports] == [10]
    assert (trial.state, trial.placed, trial.retries, trial.seconds) == (
        State.RUNNING,
        False,
        1,
        4.0,
    )
    assert trial.lost_seconds == 8.5
    assert trial.spent_seconds == 17.0  # from 3 to 20: the group hung for three of them
    assert trial.waiting_since == 20.0
    again = fold([*events, Started(0, 1.0, CPU), Reported(0, report(20, 8.0, 0.6))])[0]
    assert (again.attempts, again.queue_seconds, again.seconds) == (2, 3.0, 8.0)
    assert [r.step for r in again.reports] == [10, 20]


def test_lost_without_a_checkpoint_starts_from_scratch() -> None:
    trial = fold(
        [SUGGESTED, Started(0, 0.0, CPU), Reported(0, report(9, 3.0)), Interrupted(0, "died")]
    )[0]
    assert (trial.reports, trial.seconds, trial.lost_seconds) == ((), 0.0, 3.0)


def test_lost_takes_up_an_interrupted_trial_without_a_retry() -> None:
    events = [
        SUGGESTED,
        Started(0, 0.0, CPU),
        Reported(0, report(9, 3.0)),
        Ended(0, State.CENSORED, "interrupted", 3.0, at=4.0),
        Saved(0, Checkpoint(9, "here", Clock(train=3.0))),
        Interrupted(0, "driver restarted", broke=False, at=5.0),
    ]
    trial = fold(events)[0]
    assert (trial.state, trial.reason, trial.ended_at) == (State.RUNNING, "", None)
    assert (trial.retries, trial.lost_seconds, trial.seconds) == (0, 0.0, 3.0)


@st.composite
def streams(draw: st.DrawFn) -> list[object]:
    """Events as a study writes them, trials interleaved."""
    events: list[object] = []
    stage: dict[int, str] = {}
    steps: dict[int, int] = {}
    for _ in range(draw(st.integers(1, 40))):
        number = draw(st.integers(0, min(len(stage), 3)))
        at = float(len(events))
        if number not in stage:
            stage[number], steps[number] = "waiting", 0
            events.append(Suggested(number, {}, {}, "trial", number, at))
        elif stage[number] == "waiting":
            stage[number] = "running"
            events.append(Started(number, 0.5, CPU, at))
        elif stage[number] == "running":
            what = draw(st.sampled_from(["report", "report", "report", "save", "lose", "end"]))
            step = steps[number]
            if what == "report":
                steps[number] += 1
                events.append(Reported(number, report(step + 1, step + 1.0, 0.1), at))
            elif what == "save" and step:
                events.append(Saved(number, Checkpoint(step, "x", Clock(train=float(step))), at))
            elif what == "lose":
                stage[number] = "waiting"
                saved = fold(events)[number].checkpoint  # type: ignore[arg-type]
                steps[number] = saved.step if saved else 0
                events.append(Interrupted(number, "died", at=at))
            elif what == "end":
                stage[number] = "ended"
                events.append(Ended(number, State.CENSORED, "capped", float(step), at=at))
    return events


@given(streams())
def test_every_prefix_of_a_journal_folds_to_valid_trials(events: list[object]) -> None:
    for n in range(len(events) + 1):
        for number, trial in fold(events[:n]).items():  # type: ignore[arg-type]
            assert trial.number == number
            assert trial.ended == (trial.state is not State.RUNNING) == bool(trial.reason)
            assert trial.seconds == (trial.reports[-1].seconds if trial.reports else 0.0)
            assert trial.lost_seconds >= 0
            placed = [e for e in events[:n] if isinstance(e, Started) and e.trial == number]
            assert (trial.spent_seconds > 0) <= bool(placed)
            assert trial.spent_seconds <= n
            assert not (trial.placed and trial.ended)
            steps = [r.step for r in trial.reports]
            assert steps == sorted(set(steps))
            if trial.checkpoint:
                assert steps[-1] >= trial.checkpoint.step


@given(streams(), st.integers(0, 40))
def test_a_fold_goes_on_where_another_ended(events: list[object], cut: int) -> None:
    trials = fold(events[:cut])  # type: ignore[arg-type]
    for event in events[cut:]:
        trials[event.trial] = after(trials.get(event.trial), event)  # type: ignore
    assert trials == fold(events)  # type: ignore[arg-type]


# --- the target -------------------------------------------------------------------------------


def test_a_score_is_seconds_only_for_the_reached() -> None:
    target = Target("acc", 0.9, limit=10)
    assert target.score(observed(0.95, state=State.REACHED, seconds=4.0)) == 4.0
    for state in (State.RUNNING, State.FAILED, State.INFEASIBLE):
        assert target.score(observed(0.95, state=state)) is None
    assert target.score(observed()) == 20
    assert target.score(observed(math.nan)) == 20


finite = st.floats(-1e9, 1e9)


@given(
    value=finite,
    mode=st.sampled_from(["max", "min"]),
    reached=st.floats(0, 10, exclude_max=True),
    curves=st.lists(st.lists(st.floats(allow_nan=True), max_size=4), min_size=2, max_size=2),
)
def test_scores_order_reached_before_censored_by_best_metric(
    value: float, mode: str, reached: float, curves: list[list[float]]
) -> None:
    target = Target("acc", value, limit=10, mode=mode)
    a, b = (observed(*curve) for curve in curves)
    scores = [target.score(t) for t in (a, b)]
    fast = target.score(observed(state=State.REACHED, seconds=reached))
    assert fast is not None
    for score in scores:
        assert score is not None
        assert fast < score
        assert 10 <= score <= 20
    best = [target.best(t) for t in (a, b)]
    if None not in best and all(math.isfinite(v) for v in best):  # type: ignore[arg-type]
        short = [target.shortfall(v) for v in best]  # type: ignore[arg-type]
        if short[0] <= short[1]:
            assert scores[0] <= scores[1]  # type: ignore[operator]


def test_a_better_censored_trial_scores_strictly_better() -> None:
    target = Target("acc", 0.9, limit=10)
    scores = [target.score(observed(v, v / 2)) for v in (0.89, 0.7, 0.3, 0.0, -5.0)]
    assert scores == sorted(set(scores))  # type: ignore[type-var]
    zero = Target("acc", 0.0, limit=10, mode="min")
    scores = [zero.score(observed(v)) for v in (0.001, 0.1, 2.0, 50.0)]
    assert scores == sorted(set(scores))  # type: ignore[type-var]


def test_a_censored_trial_never_scores_the_time_it_was_stopped_at() -> None:
    target = Target("acc", 0.9, limit=10)
    for seconds in (0.1, 3.0, 9.99):
        assert target.score(observed(0.5, seconds=seconds)) == target.score(
            observed(0.5, seconds=1.0)
        )


def test_met_at_the_last_confirm_evaluations() -> None:
    once, thrice = Target("acc", 0.9, limit=9), Target("acc", 0.9, limit=9, confirm=3)
    assert once.met(observed(0.1, 0.9).reports)
    assert not once.met(observed(0.9, 0.1).reports)
    assert not once.met(())
    assert not thrice.met(observed(0.9, 0.9).reports)
    assert not thrice.met(observed(0.9, 0.1, 0.9, 0.9).reports)
    assert thrice.met(observed(0.1, 0.9, 0.95, 0.9).reports)
    setup = report(5, 5.0)
    assert thrice.met([*observed(0.9, 0.9).reports, setup, report(6, 6.0, 0.9)])
    assert not once.met([setup])


def test_mode_min_and_values_that_are_no_numbers() -> None:
    loss = Target("acc", 0.5, limit=9, mode="min")
    assert loss.met(observed(0.5).reports)
    assert not loss.met(observed(0.6).reports)
    for target in (loss, Target("acc", 0.5, limit=9)):
        assert not target.met(observed(math.nan).reports)
        assert target.best(observed(math.nan, 0.4, 0.45, math.nan)) == (
            0.4 if target is loss else 0.45
        )
    assert loss.best(observed()) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"metric": ""}, "metric"),
        ({"value": math.nan}, "value must be a finite number but got nan"),
        ({"value": "0.9"}, "value must be a finite number but got '0.9'"),
        ({"limit": 0}, "limit must be more than 0 seconds but got 0"),
        ({"limit": math.inf}, "limit must be a finite number but got inf"),
        ({"mode": "up"}, "mode must be 'max' or 'min' but got 'up'"),
        ({"clock": "cpu"}, "clock must be 'train', 'wall' or 'steps' but got 'cpu'"),
        ({"confirm": 0}, "confirm must be a whole number >= 1 but got 0"),
        ({"confirm": 1.5}, "confirm must be a whole number >= 1 but got 1.5"),
        ({"limit": 10**400}, "limit must be a finite number but got a whole number of 1329 bits"),
        ({"metric": ["acc"]}, "metric must be a metric's name but got"),
    ],
)
def test_a_wrong_target_is_named_with_its_value(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Target(**{"metric": "acc", "value": 0.9, "limit": 1, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"hang_timeout": 0}, "hang_timeout must be at least 0.1 seconds but got 0"),
        ({"checkpoint_interval": -1.0}, "checkpoint_interval"),
        ({"max_retries": -1}, "max_retries must be an integer >= 0 but got -1"),
        ({"max_consecutive_failed_trials": 0}, "max_consecutive_failed_trials"),
        (
            {"hang_timeout": 1e12},
            "hang_timeout must be at most 1e\\+09 seconds but got 1000000000000",
        ),
        ({"checkpoint_interval": 10**400}, "checkpoint_interval must be a finite number but got"),
    ],
)
def test_a_wrong_failure_policy_is_named(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        FailurePolicy(**arguments)  # type: ignore[arg-type]


# --- small values -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Stop(""), "a stop needs a non-empty reason"),
        (lambda: Stop(3), "Stop reason must be text but got 3"),
        (lambda: Stop("slow", 3.5), "Stop detail must be text but got 3.5"),
        (lambda: Fork(-1, {}), "Fork parent must be a whole number >= 0 but got -1"),
        (lambda: Fork(0, None), "Fork params must be a dict but got None"),
        (lambda: Change("0.5"), "Change lr_factor must be a finite number >= 0 but got '0.5'"),
        (lambda: Change(math.nan), "Change lr_factor must be a finite number >= 0 but got nan"),
        (lambda: Change(-0.5), "Change lr_factor must be a finite number >= 0 but got -0.5"),
        (
            lambda: Change(batch_size=6.4),
            "Change batch_size must be a whole number >= 0 but got 6.4",
        ),
        (lambda: Change(batch_size=True), "Change batch_size must be a whole number >= 0 but got"),
        (
            lambda: Change(momentum=[0.9]),
            "Change momentum must be a finite number >= 0 but got [0.9]",
        ),
        (lambda: Milestone(-1, dict), "Milestone step must be a whole number >= 0 but got -1"),
        (lambda: Milestone(True, dict), "Milestone step must be a whole number >= 0 but got True"),
        (lambda: Milestone(2**63, dict), "but got a whole number of 64 bits (at most 63)"),
        (lambda: Milestone(10**5000, dict), "but got a whole number of 16610 bits (at most 63)"),
        (lambda: Milestone(1, {"acc": 1.0}), "Milestone evaluate must be a function but got {'acc"),
        (lambda: Milestone(1, dict, {}), "Milestone state must be a function but got {}"),
        (
            lambda: Milestone(1, dict, data_seconds=math.nan),
            "Milestone data_seconds must be finite but got nan",
        ),
    ],
)
def test_a_wrong_small_value_is_named(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_of_other_libraries_are_taken() -> None:
    import numpy as np
    import torch

    change = Change(np.float32(0.5), batch_size=np.int64(64), momentum=np.float64(0.5))
    assert change == Change(0.5, 64, 0.5)
    assert [type(v) for v in (change.lr_factor, change.batch_size)] == [float, int]
    step = Milestone(np.int64(3), dict, data_seconds=torch.tensor(0.5)).step
    assert (step, type(step)) == (3, int)


def test_diverged_names_the_first_loss_that_is_no_number() -> None:
    assert diverged({"acc": math.nan, "train_loss": 1.0}) == ""
    assert diverged({"train_loss": 1.0, "val_Loss": math.inf, "loss": math.nan}) == "val_Loss"


def test_the_incumbent_is_the_fastest_reached_on_equal_hardware() -> None:
    gpu = Hardware("gpu")
    trials = [
        Trial(0, {}, state=State.REACHED, seconds=5.0, hardware=CPU),
        Trial(1, {}, state=State.REACHED, seconds=3.0, hardware=gpu),
        Trial(2, {}, state=State.CENSORED, seconds=1.0, hardware=CPU),
        Trial(3, {}, state=State.REACHED, seconds=5.0, hardware=CPU),
    ]
    assert incumbent(trials) is trials[1]
    assert incumbent(trials, hardware=CPU) is trials[0]
    assert incumbent(trials, hardware=dataclasses.replace(CPU, shared=True)) is None


def test_ranks_that_wait_for_each_other_are_counted_once() -> None:
    waits, reads = Clock(train=10), Clock(data=5, train=5)
    assert slowest([waits, reads]).seconds("train") == 10
    early, late = Clock(train=8, eval=3, setup=1), Clock(train=10, eval=1, setup=2)
    both = slowest([early, late])
    assert (both.seconds("train"), both.seconds("wall"), both.setup) == (10, 11, 2)


def test_clocks_add_up() -> None:
    a, b = Clock(data=1, train=5, eval=2), Clock(data=2, train=4, eval=1)
    assert slowest([a, b]) == Clock(data=1, train=5, eval=2)
    assert a + b == Clock(data=3, train=9, eval=3)
    assert a.seconds("train") == 6
    assert a.seconds("wall") == 8
    assert a.total == 8


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        running().seconds = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("reason", ["budget", "interrupted"])
def test_a_trial_cut_off_for_no_fault_of_its_own_has_no_score(reason: str) -> None:
    cut = dataclasses.replace(observed(0.1, 0.2), reason=reason)
    assert Target("acc", 0.9, limit=10).score(cut) is None


def test_the_leader_ran_on_the_usual_hardware() -> None:
    other = dataclasses.replace(CPU, device="faster")
    base = dataclasses.replace(running(), state=State.REACHED)
    trials = [
        dataclasses.replace(base, number=n, seconds=s, hardware=hardware)
        for n, (s, hardware) in enumerate([(3.0, CPU), (2.0, CPU), (1.0, other)])
    ]
    target = Target("acc", 0.9, limit=10)
    assert race_leader(trials, target) is trials[1]
    assert race_leader([], target) is None
