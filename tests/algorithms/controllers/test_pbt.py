"""Population-based training: its rules, its studies on a virtual clock, and their resumption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import populations
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from populations import FOUR, LIMIT, SPACE, TARGET, curve, running, study, trained
from sims import memory

import autotune as at
from autotune.algorithms.controllers.pbt import KNOBS, Population, born, moved, pbt
from autotune.algorithms.ranking.lineage import as_one, descent, origin
from autotune.cli import main
from autotune.schedules import Cosine, Linear, Piecewise, Spliced
from autotune.space.parameters import Choice, Fixed, Float, Int
from autotune.space.search_space import Constraint, SearchSpace
from autotune.storage import journal
from autotune.storage.checkpoint_files import copied
from autotune.storage.journal import JOURNAL, Closed, Journal, Opened
from autotune.study.manifest import resolved
from autotune.study.options import StudyOptions
from autotune.trial import (
    Change,
    Checkpoint,
    Clock,
    Ended,
    Fork,
    Report,
    Started,
    State,
    Suggested,
    Target,
    Trial,
    fold,
)

RULE = pbt(SPACE, TARGET, interval=1.0)


def decided(trials: list[Trial], number: int, rule: Population = RULE) -> Fork | None:
    others = [t for t in trials if t.number != number]
    return rule(trials[number], others, TARGET)


# --- exploit ------------------------------------------------------------------------------------


def test_the_worst_gives_way_to_the_best() -> None:
    fork = decided(FOUR, 0)
    assert fork is not None
    assert fork.parent == 3
    assert fork.params["width"] == 2, "what shapes the model stays"
    assert fork.params["lr"] != 0.04
    assert [decided(FOUR, n) for n in (1, 2, 3)] == [None] * 3


def test_of_eight_trials_two_give_way_to_two() -> None:
    eight = [running(n, [0.1 * n, 0.1 * n]) for n in range(8)]
    parents = {n: fork.parent if (fork := decided(eight, n)) else None for n in range(8)}
    assert {parents[0], parents[1]} <= {6, 7}
    assert set(list(parents.values())[2:]) == {None}


@pytest.mark.parametrize(
    "others",
    [
        [running(1, [0.5])],
        [running(1, [])],
        [running(1, [0.5, 0.5], saved=0)],
        [running(1, [0.5, 0.5], saved=0.9)],
        [running(1, [0.5] * 8, saved=3.0)],
        [running(1, [0.5, 0.5], state=State.REACHED)],
        [running(1, [0.5, 0.5], kind="baseline")],
        [running(1, [0.1, 0.1])],
        [running(1, [0.5, 0.5], params=None)],
        [running(1, [0.5, 0.5], hardware=at.trial.Hardware("gpu"))],
        [],
    ],
    ids=[
        *("coming", "beginning", "unsaved", "saved before", "saved long after", "ended"),
        *("baseline", "equal", "outside the space", "other hardware", "alone"),
    ],
)
def test_nothing_is_forked_without_a_better_one_to_copy(others: list[Trial]) -> None:
    assert decided([running(0, [0.1, 0.1]), *others], 0) is None


def test_a_trial_that_came_first_is_judged_once_the_last_has_come() -> None:
    first, last = running(0, [0.1, 0.1, 0.1]), running(1, [0.5])
    assert decided([first, last], 0) is None
    assert decided([first, running(1, [0.5, 0.5])], 0) is not None
    later = running(0, [0.1] * 5)  # at 2.5 s, and the other at 1.5 s is coming to the second look
    fork = decided([later, running(1, [0.5] * 3)], 0)
    assert fork is not None, "by the look before, which counts by now"


def test_trials_are_compared_at_the_same_time() -> None:
    """What one does later does not count, however good it is."""
    late = running(1, [0.05, 0.05, 0.9, 0.9])
    assert decided([running(0, [0.1, 0.1, 0.1]), late], 0) is None


def test_one_that_gave_way_still_counts_at_its_look() -> None:
    """Else the next worst would follow it, and the next, until one is left."""
    gone = replace(FOUR[0], state=State.CENSORED, reason="exploited")
    assert decided([gone, *FOUR[1:]], 1) is None
    capped = replace(FOUR[0], state=State.CENSORED, reason="capped")
    assert decided([capped, *FOUR[1:]], 1) is not None


def test_a_fork_is_not_judged_by_what_its_parent_did() -> None:
    shared = origin(FOUR[3], Checkpoint(20, "sim:3", Clock(train=1.0)), 0, {"lr": 1.0, "width": 2})
    child = replace(FOUR[0], number=0, origin=shared, params=None, reports=shared.reports)
    assert born(child, 1.0) == 1
    assert decided([child, *FOUR[1:]], 0) is None
    grown = replace(child, reports=curve([0.3, 0.35, 0.35, 0.35]), seconds=2.0)
    two = [grown, *(running(n, [0.1, 0.2, 0.5, 0.6], saved=2.0) for n in (1, 2, 3))]
    assert decided(two, 0) is not None


def test_the_baseline_is_left_alone() -> None:
    assert decided([replace(FOUR[0], kind="baseline"), *FOUR[1:]], 0) is None


def test_a_decision_is_a_function_of_trials_seed_and_number() -> None:
    assert decided(FOUR, 0) == decided(FOUR, 0)
    assert RULE(FOUR[0], FOUR[:0:-1], TARGET) == decided(FOUR, 0)
    found = {decided(FOUR, 0, replace(RULE, seed=seed)).params["lr"] for seed in range(20)}  # type: ignore[union-attr]
    assert len(found) > 2


# --- explore ------------------------------------------------------------------------------------


@given(st.integers(0, 10_000))
@settings(max_examples=200)
def test_numbers_move_a_step_and_stay_in_their_range(seed: int) -> None:
    random = Random(seed)
    assert moved(Float(0.01, 1, log=True), 0.1, random) in (
        pytest.approx(0.08),
        pytest.approx(0.12),
    )
    assert moved(Float(0.8, 1.0), 0.9, random) in (pytest.approx(0.88), pytest.approx(0.92))
    assert moved(Float(0.01, 1, log=True), 1.0, random) in (0.8, 1.0)
    assert moved(Int(16, 512, power_of_two=True), 64, random) in (32, 128)
    assert moved(Int(16, 512, power_of_two=True), 512, random) in (256, 512)
    assert moved(Int(1, 9, step=4), 5, random) in (1, 9)
    assert moved(Int(1, 100, log=True), 2, random) in (1, 3)
    assert moved(Choice(["a", "b"]), "a", random) == "a"


def test_what_is_explored_is_what_a_checkpoint_leaves_open() -> None:
    space = SearchSpace(
        {
            "model": Choice(["a", "b"]),
            "width": Int(1, 64),
            "optimizer": Fixed("sgd"),
            "lr": at.ScheduleSpace(Float(0.01, 1, log=True), family=Choice(["cosine", "linear"])),
            "momentum": Float(0.5, 0.99),
            "dropout": Float(0.0, 0.5),
        }
    )
    assert list(pbt(space, TARGET).parameters()) == ["lr.family", "lr.peak", "momentum"]
    named = pbt(space, TARGET, knobs=["dropout"])
    assert list(named.parameters()) == ["dropout"]
    assert "horizon" not in KNOBS


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"knobs": ["lrr"]}, "unknown knob 'lrr'; did you mean 'lr'"),
        ({"knobs": []}, "nothing to explore"),
        ({"interval": 0}, "interval must be more than 0 seconds but got 0"),
        ({"share": 0.6}, "share must be more than 0 and at most 0.5 but got 0.6"),
    ],
)
def test_wrong_settings_get_one_clear_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(at.UserError, match=says):
        pbt(SPACE, TARGET, **options)


def test_a_horizon_is_no_knob() -> None:
    space = SearchSpace({**SPACE.entries, "horizon": Float(1, 9)})
    with pytest.raises(at.UserError, match="horizon cannot be a knob"):
        pbt(space, TARGET, knobs=["lr", "horizon"])


def test_explored_points_keep_the_constraints() -> None:
    rule = Constraint("lr below 0.05", lambda config: config["lr"] < 0.05)
    careful = pbt(replace(SPACE, constraints=(rule,)), TARGET, interval=1.0)
    for seed in range(20):
        fork = decided(FOUR, 0, replace(careful, seed=seed))
        assert fork is None or fork.params["lr"] < 0.05
    never = Constraint("never", lambda config: False)
    assert decided(FOUR, 0, pbt(replace(SPACE, constraints=(never,)), TARGET, interval=1.0)) is None


# --- a study ------------------------------------------------------------------------------------


def check_lineage(folder: Path, result: at.StudyResult) -> None:
    """What must hold of every fork, however often the driver was killed."""
    trials = {t.number: t for t in result.trials}
    assert sorted(trials) == list(range(len(trials)))
    replaced = [t.origin.replaces for t in result.trials if t.origin is not None]
    assert len(replaced) == len(set(replaced)), "no trial gives way twice"
    gone = [t.number for t in result.trials if t.reason == "exploited"]
    assert sorted(replaced) == sorted(gone)
    for child in result.trials:
        came = child.origin
        if came is None:
            continue
        parent, before = trials[came.parent], trials[came.replaces]
        assert child.seed == parent.seed
        assert child.params is None
        assert f"went on as trial {child.number} from trial {parent.number}" in before.detail
        at_step = [r for r in parent.reports if r.step == came.checkpoint.step]
        assert at_step, "the parent has been there"
        assert came.checkpoint.clock.train == at_step[0].seconds
        shared = [r for r in child.reports if r.step <= came.checkpoint.step]
        assert tuple(shared) == came.reports
        if child.attempts:
            assert child.seconds >= at_step[0].seconds, "the prefix is charged"
    events = [e for e in journal.read(folder) if not isinstance(e, Opened | Closed)]
    assert fold(events) == trials


REACHING = 7  # a seed whose first population gets to the target: with pbt half of them do


def test_a_study_forks_and_charges_the_shared_prefix(fast_path: Path) -> None:
    result = study(fast_path, 40, seed=REACHING)
    check_lineage(fast_path, result)
    children = [t for t in result.trials if t.origin is not None]
    assert len(children) > 10
    best = result.best
    assert best is not None
    assert best.origin is not None
    assert best.seconds == best.reports[-1].seconds
    assert best.spent_seconds < best.seconds - best.origin.checkpoint.clock.train + 0.1
    own = sum(t.seconds - t.saved_prefix for t in map(Charged, result.trials))
    assert result.spent_seconds == pytest.approx(own, rel=0.02), "no second is spent twice"
    frame = result.to_frame()
    assert frame["parent"].dropna().astype(int).tolist() == [
        t.origin.parent for t in children if t.origin is not None
    ]


class Charged:
    """A trial's seconds, and those of them that it took over."""

    def __init__(self, trial: Trial) -> None:
        came = trial.origin
        self.seconds = trial.seconds
        self.saved_prefix = came.checkpoint.clock.train if came is not None else 0.0


@pytest.mark.slow
def test_a_population_beats_the_same_sampler_alone(fast_path: Path) -> None:
    """No constant learning rate reaches this target: what wins is a line of descent."""
    alone = study(fast_path / "alone", 40, controller=None, seed=REACHING)
    assert alone.best is None
    found = study(fast_path / "pbt", 40, seed=REACHING)
    assert found.best is not None
    assert found.best.seconds < LIMIT


@pytest.mark.parametrize("sampler", ["tpe", "convergence", "qmc"])
def test_any_sampler_gives_the_first_population(fast_path: Path, sampler: str) -> None:
    given_ones = [{"lr": 0.2, "width": 1}, {"lr": 0.3, "width": 3}]
    made = populations.experiment(baseline={"lr": 0.1, "width": 2}, configs=given_ones)
    result = study(fast_path, 24, experiment=made, sampler=sampler, workers=4)
    check_lineage(fast_path, result)
    assert [t.config["lr"] for t in result.trials[:3]] == [0.1, 0.2, 0.3], "given ones come first"
    assert result.trials[0].reason in ("limit", "target")
    assert any(t.origin for t in result.trials)
    assert result.trials[0].checkpoint is None, "nobody forks the baseline"


def test_forks_count_as_trials_and_end_with_them(fast_path: Path) -> None:
    result = study(fast_path, 8, workers=6)
    assert len(result.trials) == 8
    assert sum(t.origin is not None for t in result.trials) == 2
    assert sum(t.reason == "exploited" for t in result.trials) == 2
    check_lineage(fast_path, result)


def test_a_person_sees_where_the_best_comes_from(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = study(fast_path, 40, seed=REACHING).best
    assert best is not None
    assert best.origin is not None
    came = f"from trial {best.origin.parent} at step {best.origin.checkpoint.step}"
    assert main.main(["status", str(fast_path)]) == 0
    assert f"best: trial {best.number} {came}" in capsys.readouterr().out
    assert main.main(["best", str(fast_path)]) == 0
    assert f"trial {best.number} {came}: {best.seconds:.2f} s" in capsys.readouterr().out
    assert main.main(["export", str(fast_path), "--to", str(fast_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "a replay trains its last part only: the trainer does not report progress" in said
    assert "cannot be written as one" in (fast_path / "out" / "README.md").read_text()


def test_one_trial_at_a_time_is_no_population(fast_path: Path) -> None:
    made = populations.experiment(scaling=at.Scaling(max_concurrent_trials=1))
    with pytest.raises(at.UserError, match="controller pbt compares trials that run at the same"):
        study(fast_path, 8, experiment=made)


@pytest.mark.parametrize(
    ("fork", "says"),
    [
        (Fork(99, {"lr": 0.1, "width": 1}), "forks trial 99, which has no checkpoint"),
        (Fork(1, {"lr": 0.1}), "forks trial 1: width is missing"),
        (Fork(1, {"lr": 9.0, "width": 1}), "forks trial 1: lr must be a number from 0.001 to 1"),
    ],
)
def test_a_controllers_mistake_gets_one_clear_line(fast_path: Path, fork: Fork, says: str) -> None:
    def mistaken(trial: Trial, others: Any, target: Target) -> Fork | None:
        saved = any(t.number == 1 and t.checkpoint for t in others)
        return fork if trial.number == 0 and saved else None

    policy = at.FailurePolicy(checkpoint_interval=1)
    with pytest.raises(at.UserError, match=says):
        study(fast_path, 8, controller=mistaken, experiment=populations.experiment(failure=policy))


# --- resume -------------------------------------------------------------------------------------

TRIALS = 20


def test_a_study_of_a_removed_controller_is_read_and_not_resumed(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = study(fast_path, 12, recipe=f"{populations.__file__}:experiment")
    assert any(t.origin is not None for t in result.trials)
    file = fast_path / "experiment.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({**manifest, "controller": "pb2(interval=2.0)"}))
    before = (fast_path / JOURNAL).read_bytes()
    assert main.main(["resume", str(fast_path), "--trials", "20"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "controller 'pb2' was removed" in line
    assert "A new study can use pbt" in line
    assert (fast_path / JOURNAL).read_bytes() == before
    assert main.main(["status", str(fast_path)]) == 0
    check_lineage(fast_path, result)


@pytest.fixture(scope="module")
def whole_study() -> bytes:
    with memory() as folder:
        study(folder, TRIALS, workers=4)
        return (folder / JOURNAL).read_bytes()


def check_resumed(data: bytes) -> tuple[dict[int, Trial], at.StudyResult]:
    """The study taken up from `data`: what was decided stays, and nothing is decided twice."""
    made = populations.experiment()
    with memory() as folder:
        with Journal(folder):
            resolved(made, StudyOptions(tracking_uri="off")).write(folder)
        (folder / JOURNAL).write_bytes(data)
        events = [e for e in journal.read(folder) if not isinstance(e, Opened | Closed)]
        before = fold(events)
        result = study(folder, TRIALS, workers=4)
        check_lineage(folder, result)
        assert len(result.trials) == TRIALS
        assert all(t.ended for t in result.trials)
        entries = journal.read(folder)
        for trial in result.trials:
            ends = [e for e in entries if isinstance(e, Ended) and e.trial == trial.number]
            assert len(ends) == 1
        for number, trial in before.items():
            assert result.trials[number].origin == trial.origin
            assert result.trials[number].config == trial.config
            if trial.ended:
                assert result.trials[number] == trial
        return before, result


@pytest.mark.soak
def test_a_study_cut_after_any_line_keeps_its_lineage(whole_study: bytes) -> None:
    rows = whole_study.splitlines(keepends=True)
    kinds = [type(journal.from_line(row)) for row in rows]
    forks = [i for i, row in enumerate(rows) if b'"replaces"' in row]
    assert len(forks) > 5
    cuts = {*range(0, len(rows), 41), *(i + n for i in forks for n in (0, 1, 2, 3))}
    for cut in sorted(cut for cut in cuts if cut <= len(rows)):
        check_resumed(b"".join(rows[:cut]))
    assert kinds[forks[0] + 1] is Ended


def test_a_driver_killed_between_a_fork_and_the_end_that_it_means(whole_study: bytes) -> None:
    """The replaced trial's end is part of the fork: it does not train on beside its successor."""
    rows = whole_study.splitlines(keepends=True)
    cut = next(i for i, row in enumerate(rows) if b'"replaces"' in row) + 1
    before, result = check_resumed(b"".join(rows[:cut]))
    child = before[max(before)]
    assert child.origin is not None
    assert before[child.origin.replaces].state is State.RUNNING
    replaced = result.trials[child.origin.replaces]
    assert (replaced.reason, replaced.attempts) == ("exploited", 1)


def test_a_fork_that_was_never_started_is_started_from_its_checkpoint(whole_study: bytes) -> None:
    rows = whole_study.splitlines(keepends=True)
    cut = next(i for i, row in enumerate(rows) if b'"replaces"' in row) + 2
    before, result = check_resumed(b"".join(rows[:cut]))
    child = result.trials[max(before)]
    assert child.origin is not None
    fresh = [r for r in child.reports if r.step > child.origin.checkpoint.step]
    point = trained(child.config, child.seed, _point(child.origin.checkpoint)).points[1]
    assert (fresh[0].step, fresh[0].metrics) == (point.step, point.metrics)


def _point(checkpoint: Checkpoint) -> Any:
    from autotune.backends.simulator import _point as read

    return read(checkpoint)


# --- what a line of descent is ------------------------------------------------------------------


def line(configs: list[Mapping[str, Any]], steps: list[int], horizon: float) -> list[Trial]:
    """Trials of which each is forked from the one before it, after so many steps."""
    made: list[Trial] = []
    for number, (config, step) in enumerate(zip(configs, [0, *steps], strict=True)):
        reports = tuple(
            Report(s, s / 10, {"progress": min(s / horizon, 1.0)}) for s in range(0, 100, 10)
        )
        came = origin(made[-1], Checkpoint(step, ""), 50 + number) if made else None
        made.append(Trial(number, config, reports=reports, origin=came))
    return made


def test_a_line_of_descent_is_one_configuration() -> None:
    configs = [
        {"lr": Cosine(0.4, 0.0), "batch": 32, "model": "a", "decay": 0.1},
        {"lr": Linear(0.3, 0.0), "batch": 32, "model": "a", "decay": 0.1},
        {"lr": Linear(0.3, 0.0), "batch": 64, "model": "a", "decay": 0.1},
    ]
    trials = line(configs, [30, 60], 100)
    found = as_one(descent(trials[-1], trials))
    assert found == {
        "lr": Spliced((0.3,), (Cosine(0.4, 0.0), Linear(0.3, 0.0))),
        "batch": Piecewise((0.6,), (32, 64), kind="constant"),
        "model": "a",
        "decay": 0.1,
    }
    for step in range(0, 100, 10):
        now = configs[0 if step < 30 else 1 if step < 60 else 2]
        assert found["lr"](step / 100) == now["lr"](step / 100)


def test_an_ancestor_that_was_forked_at_once_contributes_nothing() -> None:
    configs = [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}]
    trials = line(configs, [30, 30], 100)
    stretches = descent(trials[-1], trials)
    assert [(s.trial.number, s.step) for s in stretches] == [(0, 0), (2, 30)]
    assert as_one(stretches) == {"lr": Piecewise((0.3,), (0.1, 0.3), kind="constant")}


@pytest.mark.parametrize(
    ("configs", "step", "horizon", "says"),
    [
        ([{"lr": 0.1}, {"lr": 0.2}], 35, 100, "does not report progress"),
        ([{"lr": 0.1}, {"lr": 0.2}], 30, 20, "forked after its schedules had ended"),
        ([{"o": "a"}, {"o": "b"}], 30, 100, "o changed at a fork and is not a schedule"),
        ([{"horizon": 3.0}, {"horizon": 4.0}], 30, 100, "horizon changed at a fork"),
        ([{"a": 0.1}, {"a": 0.1, "b": 0.2}], 30, 100, "b changed at a fork"),
    ],
)
def test_a_line_that_is_no_schedule_says_why(
    configs: list[Any], step: int, horizon: float, says: str
) -> None:
    trials = line(configs, [step], horizon)
    with pytest.raises(ValueError, match=says):
        as_one(descent(trials[-1], trials))


def test_an_origin_is_what_was_shared() -> None:
    parent = Trial(3, {}, seed=7, reports=curve([0.1] * 6))
    parent = replace(parent, changes=((20, Change(0.5)), (30, Change(0.7))))
    came = origin(parent, Checkpoint(30, "x"), 1, {"lr": 0.1})
    assert [r.step for r in came.reports] == [10, 20, 30]
    assert came.changes == ((20, Change(0.5)),), "the one at the step itself came after the state"
    child = fold([Suggested(9, {"lr": 0.1}, None, "trial", 7, 1.0, came)])[9]
    assert (child.seconds, child.spent_seconds, child.checkpoint) == (1.5, 0.0, came.checkpoint)
    assert child.point == {"lr": 0.1}
    event = Suggested(9, {"lr": 0.1}, None, "trial", 7, 1.0, came)
    assert journal.from_line(journal.to_line(event)) == event
    assert fold([event, Started(9, 0.0, at.trial.Hardware(), 2.0)])[9].reports == came.reports


def test_a_copied_checkpoint_outlives_the_one_it_was_made_from(tmp_path: Path) -> None:
    source = tmp_path / "trial-0003" / "step-30"
    source.mkdir(parents=True)
    for rank in (0, 1):
        (source / f"rank-{rank}.pt").write_text(f"state {rank}")
    (source / "rank-0.part").write_text("half")
    old = tmp_path / "trial-0009" / "step-10"
    old.mkdir(parents=True)
    made = copied(Checkpoint(30, str(source)), tmp_path / "trial-0009")
    assert made == Checkpoint(30, str(tmp_path / "trial-0009" / "step-30"))
    for file in source.iterdir():
        file.unlink()
    files = {file.name: file.read_text() for file in Path(made.path).iterdir()}
    assert files == {"rank-0.pt": "state 0", "rank-1.pt": "state 1"}
    assert not old.exists()
    assert copied(Checkpoint(30, str(source)), tmp_path / "trial-0010") is None
    assert copied(Checkpoint(30, str(tmp_path / "gone")), tmp_path / "trial-0011") is None
