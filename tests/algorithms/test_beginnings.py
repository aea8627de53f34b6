"""From which checkpoints trials may begin, and which of them a trial saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import wsd

from autotune.algorithms.beginnings import (
    SharedBeginnings,
    beginning_for,
    can_share,
    due,
    kept,
    shared_beginnings,
)
from autotune.algorithms.ranking.lineage import as_one, descent, origin
from autotune.algorithms.shared_work import saved_seconds, sentence
from autotune.schedules import WSD, Constant
from autotune.space.search_space import Choice, Fixed, Float, Int, ScheduleSpace, SearchSpace
from autotune.trial import Checkpoint, Clock, Hardware, Origin, Report, State, Trial

SEED = 7
HOW = SharedBeginnings(
    SEED,
    ({"lr": Constant(1.0), "width": 16}, {"lr": Constant(1.0), "width": 32}),
    (0.5, 0.6, 0.7, 0.8, 0.9),
)


@pytest.fixture(autouse=True)
def _another_study() -> None:
    """In one study a number has one configuration."""
    HOW._known.clear()


def trial(
    number: int,
    decay: float,
    at: Sequence[float] = (),
    saves: Sequence[float] = (),
    width: int = 16,
    **more: Any,
) -> Trial:
    """A trial with reports at these progresses, of which some were saved."""
    config = {"lr": WSD(1.0, 1.0, 0.0, warmup=0.0, decay=decay), "width": width}
    reports = tuple(report(x) for x in (0.0, *at))
    found = tuple(checkpoint(number, x) for x in saves)
    last = found[-1] if found else None
    given = {"seed": SEED, "reports": reports, "saves": found, "checkpoint": last, **more}
    return Trial(number, config, {"decay": decay}, **given)


def report(progress: float, **more: Any) -> Report:
    metrics = {"progress": progress, "val_accuracy": progress}
    return Report(
        round(1000 * progress), 10 * progress, metrics, Clock(train=10 * progress), **more
    )


def checkpoint(number: int, progress: float) -> Checkpoint:
    step = round(1000 * progress)
    return Checkpoint(step, f"trial-{number}/step-{step}", Clock(train=10 * progress))


def steps(found: Any) -> list[tuple[int, int]]:
    return [(one.trial.number, one.checkpoint.step) for one in found]


# --- where it pays --------------------------------------------------------------------------------


def space(**changed: Any) -> SearchSpace:
    return SearchSpace({**wsd.SPACE.entries, **changed})


def test_it_pays_where_little_acts_from_the_first_step_and_much_later() -> None:
    how = shared_beginnings(wsd.SPACE, SEED)
    assert how is not None
    assert how.seed == SEED
    assert 8 <= len(how.places) <= 32, "two beginnings share 64 checkpoints"
    assert list(how.places) == sorted(set(how.places))
    rest = 1.0 - 0.05
    assert 0.05 + 0.5 * rest <= how.places[4] < how.places[-1] <= 0.05 + 0.95 * rest
    assert how.places[:4] == tuple(x * how.places[4] for x in (0.5, 0.75, 0.9, 0.97))
    assert {config["width"] for config in how.configs} == {16, 32}
    assert shared_beginnings(wsd.SPACE, SEED) == how, "a function of the space"


@pytest.mark.parametrize(
    "other",
    [
        space(width=Int(1, 1000)),
        space(momentum=Float(0.8, 0.99)),
        space(horizon=Float(10.0, 20.0)),
        space(lr=ScheduleSpace(Float(0.1, 1.0), family="wsd", decay=Float(0.05, 0.5))),
        space(lr=ScheduleSpace(1.0, family="wsd", decay=Float(0.8, 0.99))),
        space(lr=ScheduleSpace(1.0, family="cosine", final=Float(0.0, 0.1))),
        space(lr=ScheduleSpace(1.0, family="wsd", warmup=Float(0.01, 0.1), decay=0.2)),
        space(lr=Fixed(1.0)),
        SearchSpace({"width": Choice((1, 2))}),
    ],
    ids=["width", "momentum", "horizon", "peak", "late", "cosine", "warm-up", "no lr", "no float"],
)
def test_elsewhere_it_does_not(other: SearchSpace) -> None:
    assert shared_beginnings(other, SEED) is None


# --- which checkpoints ----------------------------------------------------------------------------


def test_a_trial_begins_from_the_latest_checkpoint_at_which_it_agrees() -> None:
    trials = [trial(0, 0.2, (0.4, 0.55, 0.65, 0.75), (0.4, 0.55, 0.65, 0.75))]
    found = kept(trials, HOW)
    assert steps(found) == [(0, 400), (0, 550), (0, 650), (0, 750)]
    # at 0.65 itself a trainer that sets the value at the end of a step has trained with it
    for decay, step in ((0.2, 750), (0.3, 650), (0.35, 550), (0.36, 550), (0.5, 400)):
        one = beginning_for(trial(9, decay).config, found)
        assert one is not None
        assert one.checkpoint.step == step
    assert beginning_for(trial(9, 0.7).config, found) is None
    assert beginning_for(trial(9, 0.2, width=32).config, found) is None


def test_for_a_place_and_a_beginning_the_last_one_before_it_stays() -> None:
    trials = [
        trial(0, 0.5, (0.42, 0.48), (0.42, 0.48)),
        trial(1, 0.4, (0.49,), (0.49,)),
        trial(2, 0.4, (0.49,), (0.49,), width=32),
        trial(3, 0.4, (0.59,), (0.59,)),
    ]
    assert steps(kept(trials, HOW)) == [(1, 490), (2, 490), (3, 590)]
    assert steps(kept(trials, HOW, gone={(1, 490)})) == [(0, 480), (2, 490), (3, 590)]


def test_no_checkpoint_from_the_trial_s_own_part_is_one_of_others() -> None:
    decayed = trial(0, 0.4, (0.55, 0.65), (0.55, 0.65))
    assert steps(kept([decayed], HOW)) == [(0, 550)]


@pytest.mark.parametrize(
    "changed",
    [
        {"reason": "diverged", "state": State.CENSORED},
        {"seed": SEED + 1},
        {"microbatch": 8},
        {"kind": "confirm", "repeats": 5},
        {"kind": "probe"},
        {"changes": ((100, None),)},
        {"reports": (report(0.0), report(0.55, waited=3.0))},
        {"reports": (report(0.0), replace(report(0.55), metrics={"val_accuracy": 0.5}))},
        {"state": State.REACHED},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_whose_checkpoints_are_none_of_others(changed: dict[str, Any]) -> None:
    usual = trial(0, 0.2, (0.55,), (0.55,))
    assert steps(kept([usual], HOW)) == [(0, 550)]
    assert kept([replace(usual, **changed)], HOW) == []


def test_a_pruned_or_failed_trial_serves_too() -> None:
    for state, reason in ((State.CENSORED, "slower"), (State.FAILED, "worker died")):
        ended = trial(0, 0.2, (0.55,), (0.55,), state=state, reason=reason)
        assert steps(kept([ended], HOW)) == [(0, 550)]


def test_a_checkpoint_is_due_at_the_last_milestone_before_a_place() -> None:
    every = [i / 20 for i in range(1, 20)]
    late = [x + 0.01 for x in every]
    saved = [x for i, x in enumerate(late) if due(trial(0, 0.01, late[: i + 1]), (), HOW)]
    assert [round(x, 2) for x in saved] == [0.46, 0.56, 0.66, 0.76, 0.86]
    saved = [x for i, x in enumerate(every) if due(trial(0, 0.01, every[: i + 1]), (), HOW)]
    assert saved == [0.45, 0.55, 0.65, 0.75, 0.85]
    saved = [x for i, x in enumerate(every) if due(trial(1, 0.35, every[: i + 1]), (), HOW)]
    assert saved == [0.45, 0.55], "not after others have branched off"


def test_none_is_due_where_the_same_training_has_been_saved() -> None:
    there = kept([trial(0, 0.2, (0.58,), (0.58,))], HOW)
    assert not due(trial(1, 0.3, (0.5, 0.57)), there, HOW)
    assert due(trial(2, 0.3, (0.5, 0.57), width=32), there, HOW)
    assert due(trial(1, 0.3, (0.6, 0.66)), there, HOW)
    usual = trial(1, 0.3, (0.5, 0.57))
    assert due(usual, (), HOW)
    assert not due(trial(1, 0.3, (0.5, 0.57), seed=1), (), HOW)
    assert not due(trial(1, 0.3, (0.5, 0.57), kind="probe"), (), HOW)
    assert not due(replace(usual, microbatch=8), (), HOW), "nobody may begin from it"
    restored = replace(usual, reports=(*usual.reports, Report(570, 5.7, {})))
    assert not due(restored, (), HOW), "a milestone without metrics, where training goes on"


def test_a_trainer_without_progress_or_state_shares_nothing() -> None:
    usual = trial(0, 0.2, (0.4, 0.45, 0.5, 0.55))
    assert can_share([usual], HOW), "it may be saved yet"
    ended = replace(usual, state=State.CENSORED)
    assert not can_share([ended], HOW)
    assert can_share([ended, trial(1, 0.2, (0.5,), (0.5,))], HOW)
    silent = replace(usual, reports=(report(0.0), Report(10, 1.0, {"val_accuracy": 0.5})))
    assert not can_share([silent], HOW)
    restored = replace(usual, reports=(*usual.reports, Report(550, 5.5, {})))
    assert can_share([restored], HOW)
    assert can_share([], HOW)


# --- what such a trial is -------------------------------------------------------------------------


def test_its_line_of_descent_is_itself() -> None:
    parent = trial(0, 0.2, (0.5,), (0.5,))
    came = origin(parent, parent.saves[0], None)
    child = trial(1, 0.3, (0.5, 0.8), origin=came)
    fork = Trial(2, {"lr": 2.0}, origin=Origin(1, 1, checkpoint(2, 0.8), {"lr": 2.0}))
    assert came.reports == parent.reports
    assert not child.is_fork
    assert child.point == child.params
    line = descent(child, [parent, child])
    assert [(one.trial.number, one.step) for one in line] == [(1, 0)]
    assert as_one(line) == child.config
    assert [(s.trial.number, s.step) for s in descent(fork, [parent, child, fork])] == [
        (1, 0),
        (2, 800),
    ]


def test_what_it_saved_in_words() -> None:
    parent = trial(0, 0.2, (0.5,), (0.5,))
    assert sentence([parent]) == ""
    two = Hardware(num_workers=2)
    child = trial(1, 0.3, (0.5,), origin=origin(parent, parent.saves[0], None), hardware=two)
    assert saved_seconds([parent, child]) == 10.0
    assert sentence([parent, child]) == (
        "1 of 2 trials began from another's checkpoint, which saved 10 worker-seconds"
    )
