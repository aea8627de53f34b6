"""Resume is replay: from every byte of a journal, on a virtual clock and under real kills."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sims import RATES, lines, memory, race, racing, simulate, wide
from sims import learning as learn

import autotune as at
from autotune.backends.simulator import SimCurve, SimPool
from autotune.storage import journal
from autotune.storage.journal import JOURNAL, Closed, Journal, Opened, to_line
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study.manifest import resolved
from autotune.study.options import StudyOptions
from autotune.trial import Ended, Interrupted, Started, State, Suggested, Trial, fold

RULE = at.Constraint("rate below 50", lambda c: c["rate"] < 50)
SPACE = at.SearchSpace(RATES.entries, constraints=(RULE,))
POLICY = at.FailurePolicy(checkpoint_interval=2, max_retries=1)
EXPERIMENT = racing([1.0, 60.0, 3.0, 0.7, 0.9], space=SPACE, failure=POLICY)
TRIALS = 9


def eventful(config: Mapping[str, Any], seed: int) -> SimCurve:
    """Some raise, some lose their worker, some come to their end, most are just slow or fast."""
    whole = race(config, seed)
    points, rate = whole.points, config["rate"]
    if rate == 0.9:
        return replace(whole, points=points[:5], end="died")
    if rate == 0.7:
        return replace(whole, points=points[:4], end="ValueError: bad")
    return replace(whole, points=points[: 20 + seed % 9])


def events(entries: list[Any]) -> list[Any]:
    return [e for e in entries if not isinstance(e, Opened | Closed)]


@pytest.fixture(scope="module")
def whole() -> tuple[bytes, dict[int, Trial]]:
    with memory() as folder:
        result = simulate(EXPERIMENT, folder, TRIALS, eventful, workers=3)
        assert {t.state for t in result.trials} >= {
            State.REACHED,
            State.CENSORED,
            State.FAILED,
            State.INFEASIBLE,
        }
        return (folder / JOURNAL).read_bytes(), {t.number: t for t in result.trials}


def resumed(data: bytes, folder: Path) -> at.StudyResult:
    """The study taken up from `data`, in a folder that knows the study."""
    seed = folder / JOURNAL
    with Journal(folder):
        resolved(EXPERIMENT, StudyOptions(tracking_uri="off")).write(folder)
    seed.write_bytes(data)
    return simulate(EXPERIMENT, folder, TRIALS, eventful, workers=3)


def check_resumed(data: bytes, whole: dict[int, Trial]) -> None:
    with memory() as folder:
        (folder / "cut").mkdir()
        (folder / "cut" / JOURNAL).write_bytes(data)
        before = fold(events(journal.read(folder / "cut")))
        result = resumed(data, folder / "study")
        entries = journal.read(folder / "study")
        suggested = [e.trial for e in entries if isinstance(e, Suggested)]
        assert suggested == list(range(TRIALS))
        assert [t.number for t in result.trials] == suggested
        assert all(t.ended for t in result.trials)
        assert fold(events(entries)) == {t.number: t for t in result.trials}
        for number, trial in before.items():
            now = result.trials[number]
            assert (now.config, now.seed, now.kind) == (trial.config, trial.seed, trial.kind)
            if trial.ended:
                assert now == trial
        for trial in result.trials:
            steps = [r.step for r in trial.reports]
            assert steps == sorted(set(steps)), "no report is lost or written twice"
            ends = [e for e in entries if isinstance(e, Ended) and e.trial == trial.number]
            assert len(ends) == 1
            if trial.number < 5 and trial.state in (State.FAILED, State.INFEASIBLE):
                assert trial.state is whole[trial.number].state
                assert trial.reason == whole[trial.number].reason
        assert entries[-1] == Closed("done", entries[-1].at)
        ats = [e.at for e in entries]
        assert ats == sorted(ats), "the study's clock never goes backwards"


@given(st.floats(0, 1))
@settings(max_examples=60)
def test_a_study_cut_at_any_byte_is_resumed_to_the_same_trials(
    whole: tuple[bytes, dict[int, Trial]], share: float
) -> None:
    data, trials = whole
    check_resumed(data[: round(share * len(data))], trials)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
@settings(max_examples=15)
@pytest.mark.slow
def test_a_study_cut_again_and_again_still_ends(
    whole: tuple[bytes, dict[int, Trial]], cuts: list[float]
) -> None:
    data, trials = whole
    with memory() as folder:
        for n, cut in enumerate(cuts):
            data = data[: round(cut * len(data))]
            resumed(data, folder / str(n))
            data = (folder / str(n) / JOURNAL).read_bytes()
        check_resumed(data, trials)


def test_a_finished_study_does_nothing_more(fast_path: Path) -> None:
    first = simulate(EXPERIMENT, fast_path, TRIALS, eventful, workers=3)
    size = len(lines(fast_path))
    again = simulate(EXPERIMENT, fast_path, TRIALS, eventful, workers=3)
    assert again.trials == first.trials
    assert [row["event"] for row in lines(fast_path)[size:]] == ["opened", "closed"]


def test_a_resumed_trial_is_started_from_its_checkpoint(fast_path: Path) -> None:
    experiment = racing([1.0], failure=POLICY)
    simulate(experiment, fast_path, 1)
    rows = (fast_path / JOURNAL).read_bytes().splitlines(keepends=True)
    kinds = [json.loads(row)["event"] for row in rows]
    cut = [i for i, kind in enumerate(kinds) if kind == "saved"][1] + 3
    (fast_path / JOURNAL).write_bytes(b"".join(rows[:cut]))
    checkpoint = fold(events(journal.read(fast_path)))[0].checkpoint
    launched: list[Any] = []

    class Listening(SimPool):
        def start(self, launch: Any) -> Any:
            launched.append(launch)
            return super().start(launch)

    result = simulate(experiment, fast_path, 1, pool=Listening(race, 1))
    assert checkpoint is not None
    assert [launch.checkpoint for launch in launched] == [checkpoint]
    assert launched[0].base == checkpoint.clock
    assert launched[0].seed == result.trials[0].seed
    trial = result.trials[0]
    assert (trial.seconds, trial.attempts, trial.retries) == (10.0, 2, 0)
    lost = [e for e in journal.read(fast_path) if isinstance(e, Interrupted)]
    assert [(e.reason, e.broke) for e in lost] == [("driver restarted", False)]


def test_an_infeasible_suggestion_is_never_started_by_a_resumed_study(fast_path: Path) -> None:
    """The driver may die between the suggestion's line and the line that says infeasible."""
    experiment = racing([60.0], space=SPACE)
    simulate(experiment, fast_path, 1)
    rows = (fast_path / JOURNAL).read_bytes().splitlines(keepends=True)
    (fast_path / JOURNAL).write_bytes(b"".join(rows[:2]))
    result = simulate(experiment, fast_path, 1)
    assert result.trials[0].state is State.INFEASIBLE
    assert not any(isinstance(e, Started) for e in journal.read(fast_path))


def test_a_driver_killed_before_its_first_line_leaves_a_usable_folder(fast_path: Path) -> None:
    (fast_path / JOURNAL).touch()
    assert len(simulate(racing([1.0]), fast_path, 1).trials) == 1
    (fast_path / "torn").mkdir()
    (fast_path / "torn" / JOURNAL).write_bytes(b"")
    (fast_path / "torn" / f"{EXPERIMENT_JSON}.part").write_text("{")
    assert len(simulate(racing([1.0]), fast_path / "torn", 1).trials) == 1


def test_a_reached_trial_that_was_not_written_down_is_judged_again(fast_path: Path) -> None:
    simulate(racing([2.0]), fast_path, 1)
    rows = (fast_path / JOURNAL).read_bytes().splitlines(keepends=True)
    last = [i for i, row in enumerate(rows) if b'"reported"' in row][-1]
    (fast_path / JOURNAL).write_bytes(b"".join(rows[: last + 1]))
    result = simulate(racing([2.0]), fast_path, 1)
    assert (result.trials[0].state, result.trials[0].seconds) == (State.REACHED, 5.0)
    assert result.trials[0].attempts == 1


@pytest.mark.parametrize("sampler", ["random", "qmc", "nsga2", "tpe"])
def test_a_resumed_sampler_does_not_repeat_its_points(fast_path: Path, sampler: str) -> None:
    simulate(wide(), fast_path, 8, learn, sampler=sampler, seed=5)
    result = simulate(wide(), fast_path, 16, learn, sampler=sampler, seed=5)
    points = Counter(json.dumps(t.params, sort_keys=True) for t in result.trials)
    assert max(points.values()) == 1


# --- the folder -------------------------------------------------------------------------------


def test_a_config_with_a_key_named_schedule_is_resumed(fast_path: Path) -> None:
    space = at.SearchSpace({**RATES.entries, "schedule": at.Choice(["cosine", "linear"])})
    given = {"rate": 1.0, "schedule": "cosine"}
    experiment = replace(racing([1.0]), space=space, baseline=given)
    simulate(experiment, fast_path, 1)
    result = simulate(experiment, fast_path, 2)
    assert result.trials[0].config == given


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "other"}, "its name is 'racing' and not 'other'"),
        (
            {"target": at.Target("val_accuracy", 0.5, limit=50)},
            "its target.value is 1.0 and not 0.5",
        ),
        (
            {"space": at.SearchSpace({"rate": at.Float(0.01, 200, log=True)})},
            "its space.entries.rate.high is 100 and not 200",
        ),
        ({"train": lines}, "its train is"),
    ],
)
def test_a_folder_that_holds_another_study_is_refused(
    fast_path: Path, change: dict[str, Any], says: str
) -> None:
    experiment = racing([1.0])
    simulate(experiment, fast_path, 1)
    before = (fast_path / JOURNAL).read_bytes()
    with pytest.raises(at.UserError) as error:
        simulate(replace(experiment, **change), fast_path, 2)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert (fast_path / JOURNAL).read_bytes() == before


def test_resume_false_refuses_a_study(fast_path: Path) -> None:
    simulate(racing([1.0]), fast_path, 1, resume=False)
    with pytest.raises(at.UserError, match="holds the study 'racing': choose another folder"):
        simulate(racing([1.0]), fast_path, 1, resume=False)


def test_interrupted_trials_are_resumed_and_counted_once(fast_path: Path) -> None:
    """A driver that was asked to leave writes the end down; the next one resumes the trial."""
    experiment = racing([1.0], failure=POLICY)
    simulate(experiment, fast_path, 1)
    rows = (fast_path / JOURNAL).read_bytes().splitlines(keepends=True)
    kept = rows[: 1 + next(i for i, row in enumerate(rows) if b'"step":50' in row)]
    trial = fold(events([journal.from_line(row) for row in kept]))[0]
    at_end = Ended(0, State.CENSORED, "interrupted", trial.seconds, at=trial.seconds)
    closed = Closed("interrupted", trial.seconds)
    ends = "".join(f"{to_line(entry)}\n" for entry in (at_end, closed)).encode()
    (fast_path / JOURNAL).write_bytes(b"".join(kept) + ends)
    result = simulate(experiment, fast_path, 1)
    now = result.trials[0]
    assert (now.state, now.seconds, now.retries, now.attempts) == (State.REACHED, 10.0, 0, 2)
    assert [r.step for r in now.reports] == list(range(0, 101, 10))


# --- a baseline that the time limit cut off ---------------------------------------------------


def untimed(trial: Trial) -> Trial:
    """The trial without what a second driver adds: attempt, checkpoint, the study's own clock."""
    gone: dict[str, Any] = {"attempts": 1, "placed_since": 0.0, "waiting_since": 0.0}
    gone |= {"spent_seconds": 0.0, "queue_seconds": 0.0, "ended_at": None}
    return replace(trial, **gone, checkpoint=None, earlier=None, saves=())


@pytest.mark.parametrize("again", [None, 2.5])
def test_a_baseline_that_the_time_limit_cut_off_goes_on(
    fast_path: Path, again: float | None
) -> None:
    """The study would have nothing to compare with; it ends as if there had been no limit."""
    experiment = racing([1.0, 3.0, 0.7])
    whole = simulate(experiment, fast_path / "whole", 3)
    folder = fast_path / "cut"
    cut = simulate(experiment, folder, 3, time_limit=3.5)
    assert [(t.reason, t.seconds, t.resumable) for t in cut.trials] == [("budget", 4.0, True)]
    assert cut.trials[0].checkpoint is not None, "it is saved, to go on from there"
    if again is not None:
        twice = simulate(experiment, folder, 3, time_limit=again)
        assert [(t.reason, t.seconds) for t in twice.trials] == [("budget", 7.0)]
    result = simulate(experiment, folder, 3)
    assert list(map(untimed, result.trials)) == list(map(untimed, whole.trials))
    ends = [e.reason for e in journal.read(folder) if isinstance(e, Ended) and e.trial == 0]
    assert ends == ["budget"] * (1 + (again is not None)) + ["target"]


def test_what_else_the_time_limit_cut_off_stays_so(fast_path: Path) -> None:
    experiment = racing([2.0, 0.1])
    cut = simulate(experiment, fast_path, 2, time_limit=6.5)
    assert [(t.reason, t.resumable) for t in cut.trials] == [("target", False), ("budget", False)]
    assert simulate(experiment, fast_path, 2).trials == cut.trials
    assert not any(isinstance(e, Interrupted) for e in journal.read(fast_path))


def test_a_baseline_that_ended_by_its_own_merit_is_not_run_again(fast_path: Path) -> None:
    experiment = racing([0.1, 1.0], limit=3)
    cut = simulate(experiment, fast_path, 2, time_limit=4.5)
    assert [t.reason for t in cut.trials] == ["limit", "budget"]
    assert simulate(experiment, fast_path, 2).trials == cut.trials
