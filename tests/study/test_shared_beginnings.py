"""Studies whose trials share their beginnings, on a virtual clock and in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wsd
from hypothesis import given, settings
from hypothesis import strategies as st
from sims import memory, simulate

import autotune as at
from autotune.algorithms.ranking.repeats import config_from_scratch
from autotune.algorithms.shared_work import saved_seconds, sentence, shared
from autotune.backends.simulator import SimCurve
from autotune.cli import main
from autotune.evaluation.export.export import export
from autotune.storage import journal
from autotune.storage.checkpoint_files import OWN
from autotune.storage.codec import encode
from autotune.storage.journal import JOURNAL, Closed, Opened
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study.beginnings import resolve_beginnings
from autotune.study.display.trial_text import name_of
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.tracking.run_content import tags
from autotune.trial import Ended, Interrupted, Saved, State, Stop, Suggested, Trial, fold

TRIALS = 64


def run(folder: Path, trials: int = TRIALS, workers: int = 1, **options: Any) -> at.StudyResult:
    usual = {"pruner": "none"}
    made = wsd.wsd(**options.pop("experiment", {}))
    curve = options.pop("curve", wsd.curve)
    return simulate(made, folder, trials, curve, workers=workers, **{**usual, **options})


def check(trial: Trial) -> None:
    """That the trial reported what it would have from its first step on, its clock included."""
    points = {p.step: p for p in wsd.curve(trial.config, trial.seed).points}
    for report in trial.reports:
        point = points[report.step]
        assert dict(report.metrics) == point.metrics
        assert report.seconds == point.seconds
    assert [r.step for r in trial.reports] == sorted(points)[: len(trial.reports)]
    met = next((p for p in points.values() if p.metrics.get(wsd.METRIC, 0) >= 0.9), None)
    assert trial.state is (State.REACHED if met is not None else State.CENSORED)
    assert trial.seconds == (met or points[max(points)]).seconds


@pytest.mark.parametrize("workers", [1, 4])
def test_each_trial_is_the_one_from_scratch_and_the_study_takes_a_third(
    fast_path: Path, workers: int
) -> None:
    result = run(fast_path / "shared", workers=workers)
    alone = run(fast_path / "alone", workers=workers, shared_beginnings="off")
    for trial in result.trials:
        check(trial)
    assert len(shared(result.trials)) >= TRIALS - 2 * workers
    assert [t.config for t in result.trials] == [t.config for t in alone.trials]
    seeds = [{t.seed for t in r.trials} for r in (result, alone)]
    assert list(map(len, seeds)) == [1, TRIALS]
    assert result.spent_seconds < alone.spent_seconds / 3
    own = sum(t.seconds for t in result.trials)
    assert result.spent_seconds == pytest.approx(own - saved_seconds(result.trials))


def test_the_winner_is_that_of_trials_from_scratch_with_this_seed(fast_path: Path) -> None:
    result = run(fast_path)
    assert result.best is not None

    def reached(trial: Trial) -> float:
        points = wsd.curve(trial.config, trial.seed).points
        times = [p.seconds for p in points if p.metrics.get(wsd.METRIC, 0.0) >= 0.9]
        return min(times, default=float("inf"))

    assert result.best.number == min(result.trials, key=lambda t: (reached(t), t.number)).number


def test_what_repeats_a_trial_trains_from_scratch_on_fresh_seeds(fast_path: Path) -> None:
    result = run(fast_path, trials=12, repeats=2, top=2, racing=0.3)
    again = [t for t in result.trials if t.repeats is not None]
    assert {t.kind for t in again} == {"race", "confirm"}
    assert all(t.origin is None for t in again)
    (common,) = {t.seed for t in result.searched}
    assert common not in {t.seed for t in again}
    assert all(t.config == result.trials[t.repeats or 0].config for t in again)


def test_a_trial_may_begin_from_one_that_began_from_another(fast_path: Path) -> None:
    result = run(fast_path)
    parents = {t.origin.parent for t in shared(result.trials) if t.origin is not None}
    assert parents & {t.number for t in shared(result.trials)}


def test_the_journal_and_the_places_bound_the_checkpoints(fast_path: Path) -> None:
    run(fast_path)
    saves = [e for e in journal.read(fast_path) if isinstance(e, Saved)]
    assert 10 < len(saves) <= 70


def test_its_export_and_its_run_say_what_it_is(fast_path: Path) -> None:
    result = run(fast_path / "study", trials=8)
    trial = shared(result.trials)[-1]
    assert trial.origin is not None
    assert config_from_scratch(trial, result.trials) == trial.config
    content = export(result, trial, fast_path / "exported")
    assert (content["lineage"], content["lineage_fault"]) == ([], "")
    written = json.loads((fast_path / "exported" / "config.json").read_text())
    assert written == encode(trial.config)
    assert content["seed"] == trial.seed
    found = tags(trial, {})
    assert found["autotune.parent"] == str(trial.origin.parent)
    assert found["autotune.parent_step"] == str(trial.origin.checkpoint.step)
    assert name_of(trial) == f"{trial.number} from trial {trial.origin.parent}"


def test_a_trial_that_its_shared_reports_end_is_never_started(fast_path: Path) -> None:
    def early(trial: Trial, others: Any, target: at.Target) -> Stop | None:
        last = trial.reports[-1].metrics.get("progress", 0.0)
        late = trial.number >= 5 and last > 0.4
        return Stop("late", "at more than 40 %") if late else None

    result = run(fast_path, trials=12, pruner=early)
    ended = [t for t in result.trials if t.reason == "late"]
    assert len(ended) == 7
    for trial in ended:
        assert (trial.attempts, trial.spent_seconds) == (0, 0.0)
        assert trial.state is State.CENSORED


def test_a_trainer_without_progress_gets_seeds_of_its_own(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(config: Mapping[str, Any], seed: int) -> SimCurve:
        made = wsd.curve(config, seed)
        points = [
            replace(p, metrics={k: v for k, v in p.metrics.items() if k != "progress"})
            for p in made.points
        ]
        return replace(made, points=points)

    result = run(fast_path, trials=8, curve=silent)
    assert not shared(result.trials)
    assert len({t.seed for t in result.trials}) == 8
    assert main.main(["status", str(fast_path)]) == main.DONE
    said = "  shared beginnings: none, as the trainer reports no metric 'progress'\n"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "space", "expected"),
    [
        ({}, wsd.SPACE, "auto"),
        ({"shared_beginnings": "off"}, wsd.SPACE, "off"),
        ({"shared_beginnings": "NONE"}, wsd.SPACE, "off"),
        ({"controller": "regulator"}, wsd.SPACE, "off"),
        ({"seeds": [1] * 20}, wsd.SPACE, "off"),
        ({"search": False}, wsd.SPACE, "off"),
        ({}, at.SearchSpace({"rate": at.Float(0.1, 1.0)}), "off"),
    ],
)
def test_where_it_is_on(options: dict[str, Any], space: at.SearchSpace, expected: str) -> None:
    mode, why = resolve_beginnings(wsd.wsd(space), StudyOptions(**options), None)
    assert mode == expected
    assert (why is not None) == (expected == "auto")
    if why is not None:
        assert why.startswith("auto: trials begin alike, some up to 95% of the horizon")


def test_a_study_goes_on_as_it_began(fast_path: Path) -> None:
    run(fast_path, trials=4, shared_beginnings="off")
    more = run(fast_path, trials=8)
    assert not shared(more.trials)
    made = json.loads((fast_path / EXPERIMENT_JSON).read_text())
    assert made["shared_beginnings"] == "off"
    del made["shared_beginnings"]  # a study of an older version
    (fast_path / EXPERIMENT_JSON).write_text(json.dumps(made))
    assert Manifest.read(fast_path).options.shared_beginnings == "off"


def test_status_says_what_was_saved(fast_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(fast_path, trials=12)
    said = sentence(result.trials)
    assert said.startswith(f"{len(shared(result.trials))} of 12 trials began from another's")
    capsys.readouterr()
    assert main.main(["status", str(fast_path)]) == main.DONE
    assert f"  shared beginnings: {said}\n" in capsys.readouterr().out
    assert main.main(["status", str(fast_path), "--json"]) == main.DONE
    found = json.loads(capsys.readouterr().out)["shared_beginnings"]
    assert found["trials"] == len(shared(result.trials))
    assert found["saved_worker_seconds"] == pytest.approx(saved_seconds(result.trials))


# --- resumed --------------------------------------------------------------------------------------


@given(share=st.floats(0, 1), workers=st.integers(1, 3))
@settings(max_examples=5)
def test_a_study_cut_anywhere_is_resumed_to_trials_from_scratch(share: float, workers: int) -> None:
    with memory() as folder:
        run(folder, trials=8, workers=workers)
        data = (folder / JOURNAL).read_bytes()
        (folder / JOURNAL).write_bytes(data[: round(share * len(data))])
        before = fold(e for e in journal.read(folder) if not isinstance(e, Opened | Closed))
        result = run(folder, trials=8, workers=workers)
        assert len(result.trials) == 8
        assert len({t.seed for t in result.trials}) == 1
        for number, trial in before.items():
            assert result.trials[number].origin == trial.origin
        for trial in result.trials:
            check(trial)


# --- real checkpoints -----------------------------------------------------------------------------


def here(folder: Path, trials: int, watch: Any = None) -> at.StudyResult:
    """The study in this process, with real files."""
    target = at.Target(wsd.METRIC, limit_steps=wsd.SAMPLES * wsd.STEPS)
    made = replace(wsd.wsd(target=target), train=wsd.learn)
    options: dict[str, Any] = {"tracking_uri": "off", "progress": False, "watch": watch}
    options |= {"backend": "local", "max_concurrent_trials": 1, "racing": 0}
    return at.run(made, trials=trials, out=folder, pruner="none", sampler="random", **options)


def check_real(trial: Trial) -> None:
    found = {r.step: dict(r.metrics) for r in trial.reports if r.metrics}
    whole = wsd.learn({**trial.config, "seed": trial.seed})
    assert found == {m.step: m.evaluate() for m in whole if m.step in found}
    assert len(found) == wsd.STEPS


def folders(folder: Path) -> list[str]:
    return sorted(f"{p.parent.name}/{p.name}" for p in (folder / OWN).glob("trial-*/step-*"))


def test_beginnings_stay_until_the_search_ends(fast_path: Path) -> None:
    seen: list[int] = []

    def look(event: Any, trials: Mapping[int, Trial]) -> None:
        if isinstance(event, Ended):
            seen.append(len(folders(fast_path)))

    result = here(fast_path, 10, look)
    assert len(shared(result.trials)) >= 7
    for trial in result.trials:
        check_real(trial)
    assert 10 < max(seen) < 75
    assert result.best is not None
    best = result.best
    assert best.checkpoint is not None
    assert folders(fast_path) == [f"trial-{best.number:04d}/step-{best.checkpoint.step}"]


def test_a_study_that_gets_more_trials_begins_afresh(fast_path: Path) -> None:
    here(fast_path, 4)
    result = here(fast_path, 8)
    assert len(result.trials) == 8
    assert [t.origin is None for t in result.trials[4:]].count(True) in (1, 2), "what was removed"
    for trial in result.trials:
        check_real(trial)


def test_a_damaged_beginning_is_trained_from_the_first_step(fast_path: Path) -> None:
    damaged: list[int] = []

    def damage(event: Any, trials: Mapping[int, Trial]) -> None:
        if isinstance(event, Suggested) and event.origin is not None and not damaged:
            damaged.append(event.trial)
            for file in Path(event.origin.checkpoint.path).iterdir():
                file.write_bytes(b"\0" + file.read_bytes()[1:])

    result = here(fast_path, 6, damage)
    trial = result.trials[damaged[0]]
    lost = [e for e in journal.read(fast_path) if isinstance(e, Interrupted)]
    assert [(e.trial, e.damaged) for e in lost] == [(trial.number, True)]
    assert trial.origin is None
    assert trial.state is State.COMPLETED
    for one in result.trials:
        check_real(one)
