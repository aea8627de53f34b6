"""What a word on the command line becomes: studies, trials, replays, and words that are wrong."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from sims import racing, simulate

from autotune.cli import main
from autotune.errors import UserError
from autotune.evaluation.comparison import (
    ComparedTarget,
    Comparison,
    compare,
    from_studies,
    sources,
)
from autotune.trial import Hardware, State, Target, Trial

HEAD = "epoch\thours\ttop1Accuracy\ttop5Accuracy\n"


@pytest.fixture(scope="module")
def race_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trial 0, the baseline, needs 10 s, trial 1 five, trial 2 two, trial 3 is capped."""
    folder = tmp_path_factory.mktemp("studies") / "race"
    simulate(racing([1, 2, 5, 0.5]), folder, 4)
    return folder


@pytest.fixture(scope="module")
def replay_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of one configuration, as a replay makes them; each needs 5 s."""
    from autotune.evaluation.export.replay import SamePoint

    folder = tmp_path_factory.mktemp("studies") / "again"
    experiment = replace(racing([2]), baseline=None, configs=())
    experiment = replace(experiment, space=_fixed(2.0))
    simulate(experiment, folder, 3, sampler=SamePoint(), pruner="none", seeds=(7, 8, 9))
    return folder


def _fixed(rate: float):
    from autotune.space.search_space import Fixed, SearchSpace

    return SearchSpace({"rate": Fixed(rate)})


def with_trials(study: from_studies.Study, trials: tuple[Trial, ...]) -> from_studies.Study:
    return replace(study, result=replace(study.result, trials=trials))


def table(words: list[str], baseline: str | None = None, **options) -> Comparison:
    candidates, name = sources.gather(words, baseline, **options)
    return compare(candidates, name)


def test_a_study_is_its_best_trial_against_its_own_baseline(race_folder: Path) -> None:
    made = table([str(race_folder)])
    assert [(r.name, r.median_seconds) for r in made.rows] == [("race#2", 2), ("race#0", 10)]
    assert made.baseline == "race#0"
    best = made.row("race#2")
    assert best.speedup == pytest.approx(5)
    assert best.candidate.kind == "tuning"
    assert (best.candidate.tuning_seconds, best.candidate.search_trials) == (2, 4)
    assert best.candidate.search_seconds == pytest.approx(10 + 5 + 2 + 2)
    run = best.candidate.runs[0]
    assert (run.samples, run.samples_per_second, run.worker_seconds) == (20, 10, 2)
    assert run.curve[-1] == (20, 2, 1.0)
    assert (best.throughput_ratio, best.efficiency_ratio) == (1, pytest.approx(5))
    assert best.candidate.conditions.target == ComparedTarget("val_accuracy", 1.0)
    assert best.candidate.config == {"rate": 5}


def test_single_trials_and_baselines_by_number(race_folder: Path) -> None:
    made = table([f"{race_folder}#2", f"{race_folder}#3"], "trial:1")
    assert made.baseline == "race#1"
    assert [(r.name, r.reached, r.n) for r in made.rows][-1] == ("race#3", 0, 1)
    capped = made.row("race#3").candidate.runs[0]
    assert (capped.reached, capped.reason) == (False, "capped")
    by_folder = table([f"{race_folder}#1"], str(race_folder))
    assert by_folder.baseline == "race#2"


def test_a_replay_is_confirmed(race_folder: Path, replay_folder: Path) -> None:
    made = table([str(replay_folder), str(race_folder)], f"{race_folder}#0")
    again = made.row("again").candidate
    assert (again.kind, len(again.runs)) == ("confirmed", 3)
    assert [r.seed for r in again.runs] == [7, 8, 9]
    assert made.row("again").speedup == pytest.approx(2)
    assert made.baseline == "race#0"


def _repeating(trials: tuple[Trial, ...], of: dict[int, int]) -> tuple[Trial, ...]:
    """These trials as confirmations of others, whether or not this version knows the field."""
    made = []
    for trial in trials:
        if trial.number in of:
            trial = replace(trial, kind="confirm")
            object.__setattr__(trial, "repeats", of[trial.number])
        made.append(trial)
    return tuple(made)


def test_confirmations_are_the_candidates_where_there_are_some(race_folder: Path) -> None:
    study = from_studies.read(race_folder)
    study = with_trials(study, _repeating(study.trials, {2: 1, 3: 0}))
    found = {c.name: c for c in from_studies.candidates(study)}
    assert sorted(found) == ["race#0", "race#1"]
    assert [c.kind for c in found.values()] == ["confirmed", "confirmed"]
    assert (found["race#1"].tuning_seconds, found["race#1"].runs[0].seconds) == (5, 2)
    assert found["race#0"].baseline
    assert from_studies.baseline(study) == found["race#0"]
    assert from_studies.of_trial(study, 1) == found["race#1"]
    assert from_studies.of_trial(study, 2).runs[0].seconds == 2  # the confirmation by itself


def test_steps_are_compared_as_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They stood there as seconds, with a throughput and a time to pay that nobody measured."""
    target = Target("val_accuracy", 1.0, limit_steps=500, clock="steps")
    simulate(racing([1.0, 2.0, 0.01], target=target), tmp_path / "s", 3, repeats=3, top=1)
    made = table([str(tmp_path / "s")])
    assert made.unit == "steps"
    best, baseline = made.rows
    assert (best.median_seconds, baseline.median_seconds) == (50.0, 100.0)
    assert best.speedup == pytest.approx(2.0)
    for row in made.rows:
        rates = (row.samples_per_second, row.worker_seconds, row.throughput_ratio, row.samples)
        assert (*rates, row.break_even_runs) == (None,) * 5
    report = tmp_path / "report.html"
    assert main.main(["compare", str(tmp_path / "s"), "--report", str(report)]) == main.DONE
    out = capsys.readouterr().out
    assert out.startswith("Steps to val_accuracy >= 1; ")
    assert "s#1 took 50 steps in the search." in out
    assert "median (steps)" in report.read_text()
    assert "median (s)" not in report.read_text()


def test_two_studies_of_one_name_get_distinct_names(race_folder: Path, tmp_path: Path) -> None:
    import shutil

    other = tmp_path / "race"
    shutil.copytree(race_folder, other)
    made = table([str(race_folder), str(other)])
    assert {r.name for r in made.rows} == {
        f"{race_folder}#2", f"{race_folder}#0", f"{other}#2",
    }  # fmt: skip
    assert len(table([str(race_folder), str(race_folder)]).rows) == 2  # the same one, twice


def test_a_run_that_diverged_never_arrives(race_folder: Path) -> None:
    study = from_studies.read(race_folder)
    lost = replace(study.trials[3], reason="diverged", seconds=1.0)
    found = from_studies.of_trial(with_trials(study, (*study.trials[:3], lost)), 3)
    assert (found.runs[0].seconds, found.runs[0].reached) == (study.target.limit, False)


def test_what_is_left_out_is_listed(race_folder: Path) -> None:
    study = from_studies.read(race_folder)
    trials = list(_repeating(study.trials, {1: 0, 2: 0, 3: 0}))
    for i, change in (
        (2, {"hardware": Hardware("H100")}),
        (3, {"state": "FAILED", "reason": "boom"}),
    ):
        changed = replace(trials[i], **change)
        object.__setattr__(changed, "repeats", 0)
        trials[i] = changed
    found = from_studies.candidates(with_trials(study, tuple(trials)))[0]
    assert [r.trial for r in found.runs] == [1]
    assert "trial 2 is left out, as it ran on 1 x H100" in found.left_out[0]
    assert found.left_out[1] == "trial 3 is left out, as it is FAILED: boom"
    assert f"race#0: {found.left_out[0]}." in compare([found]).notes


def test_where_nothing_arrived_the_nearest_counts(tmp_path: Path) -> None:
    simulate(racing([0.1, 0.2], limit=20), tmp_path / "far", 2, pruner="none")
    made = table([str(tmp_path / "far")])
    assert made.row("far#1").median_seconds is None
    assert made.row("far#1").reached == 0


def test_studies_on_other_terms_are_refused(race_folder: Path, tmp_path: Path) -> None:
    from autotune.trial import Target

    other = racing([1, 4], target=Target("val_accuracy", 0.9, limit=50))
    simulate(other, tmp_path / "easier", 2)
    with pytest.raises(UserError, match=r"target is val_accuracy >= 0\.9 for easier#1"):
        table([str(race_folder), str(tmp_path / "easier")])


# --- mistakes -------------------------------------------------------------------------------------


def test_words_that_name_nothing(race_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    manifest = json.loads((race_folder / "experiment.json").read_text())
    (tmp_path / "begun" / "experiment.json").write_text(json.dumps(manifest))
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "trial.json").write_text("{}")
    (tmp_path / "run.tsv").write_text(HEAD + "1\t0.1\t50\t93\n")
    parent = race_folder.parent
    for word, message in {
        str(parent / "rce"): "unknown study folder 'rce'; did you mean 'race'?",
        str(tmp_path / "x" / "y"): "y does not exist",
        str(tmp_path / "empty"): "is not a study folder: it has no experiment.json",
        str(tmp_path / "begun"): "has no trial yet",
        str(tmp_path / "export"): "is an export, which has no times of its own",
        f"{race_folder}#44": "has no trial 44: its trials are 0 to 3",
        str(tmp_path / "rnu.tsv"): "unknown file 'rnu.tsv'; did you mean 'run.tsv'?",
        str(parent / "none.tsv"): "none.tsv does not exist",
        "mlflow:digits": "must be named like mlflow:EXPERIMENT/RUN",
        "mlflow:digits/": "must be named like mlflow:EXPERIMENT/RUN",
    }.items():
        with pytest.raises(UserError, match=re.escape(message)) as caught:
            sources.read(word)
        assert "\n" not in str(caught.value)


def test_a_baseline_that_is_none(race_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.tsv"
    file.write_text(HEAD + "1\t0.1\t50\t93\n")
    with pytest.raises(UserError, match="trial:3 is a trial of a study, but none is compared"):
        sources.gather([str(file)], "trial:3")
    for word in ("trial:x", "trial:", "trial:-1"):
        with pytest.raises(UserError, match=f"--baseline must be like trial:7, .* got '{word}'"):
            sources.gather([str(race_folder)], word)
    with pytest.raises(UserError, match="has no trial 9"):
        sources.gather([str(race_folder)], "trial:9")
    with pytest.raises(UserError, match="no published run is compared"):
        sources.gather([str(race_folder)], target=ComparedTarget("top5", 90.0))


def test_a_trial_that_has_not_run_yet(race_folder: Path) -> None:
    study = from_studies.read(race_folder)
    running = replace(study.trials[1], state="RUNNING", reports=(), seconds=0.0)
    found = from_studies.of_trial(with_trials(study, (study.trials[0], running)), 1)
    with pytest.raises(UserError, match="race#1 has no run that counts: trial 1 is left out"):
        compare([found])


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_writes_and_refuses(
    race_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", str(race_folder), f"{race_folder}#1"]
    assert main.main([*words, "--csv", str(tmp_path / "t.csv")]) == main.DONE
    out = capsys.readouterr().out
    assert "race#2" in out
    assert "5.00x" in out
    with (tmp_path / "t.csv").open(newline="") as opened:
        assert [r["name"] for r in csv.DictReader(opened)] == ["race#2", "race#1", "race#0"]
    assert main.main([*words, "--json"]) == main.DONE
    printed = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in printed["rows"]] == ["race#2", "race#1", "race#0"]
    assert printed["rows"][0]["why_not"]["p"].startswith("a run that was chosen")

    report = tmp_path / "none" / "r.html"
    assert (
        main.main([*words, "--report", str(report), "--csv", str(tmp_path / "u.csv")]) == main.USER
    )
    out, err = capsys.readouterr()
    assert out == ""
    assert "there is no folder" in err
    assert not (tmp_path / "u.csv").exists()


def test_only_columns_that_are_there_are_explained(
    race_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["compare", str(race_folder)]) == main.DONE
    chosen = capsys.readouterr().out  # one run each: neither chances nor tests
    assert "why: speedup = samples per second" in chosen
    assert "P: chance" not in chosen
    assert "p: log-rank" not in chosen


def test_the_command_allows_terms_by_comma_or_twice(
    race_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.tsv"
    file.write_text(HEAD + "1\t0.001\t50\t93\n")
    words = ["compare", str(race_folder), str(file)]
    assert main.main([*words, "--allow", "hardware,target"]) == main.DONE
    assert "These times differ in hardware, target" in capsys.readouterr().out
    assert main.main([*words, "--allow", "hardware", "--allow", "target"]) == main.DONE
    capsys.readouterr()
    assert main.main([*words, "--allow", "hardware,tarrget"]) == main.USER
    assert "did you mean 'target'" in capsys.readouterr().err


def test_nothing_is_kept_of_a_study_that_is_only_read(race_folder: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in race_folder.rglob("*")}
    table([str(race_folder)])
    assert {p: p.stat().st_mtime_ns for p in race_folder.rglob("*")} == before


def test_confirmations_that_were_cut_off_do_not_count(race_folder: Path) -> None:
    study = from_studies.read(race_folder)
    trials = _repeating(study.trials, {2: 1, 3: 0})
    cut = replace(trials[3], state=State.CENSORED, reason="budget", seconds=0.5, number=99)
    found = {c.name: c for c in from_studies.candidates(with_trials(study, (*trials, cut)))}
    assert len(found["race#0"].runs) == 1
    assert not found["race#0"].left_out


def test_a_races_seconds_are_part_of_the_search_and_rank_its_trial(
    race_folder: Path,
) -> None:
    study = from_studies.read(race_folder)
    fastest = from_studies.nearest(study)
    assert fastest is not None
    slow = replace(
        study.trials[0],
        number=99,
        kind="race",
        repeats=fastest.number,
        seconds=99.0,
        spent_seconds=7.0,
    )
    raced = with_trials(study, (*study.trials, slow))
    assert from_studies.nearest(raced) != fastest
    before, after = (from_studies.candidates(s)[0] for s in (study, raced))
    assert after.search_seconds == before.search_seconds + 7.0
