"""`auto`: the rules, and that a study takes and names the sampler that they give."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from noisy_race import noisy_curve
from sims import RealTime, race, racing, simulate

import autotune as at
from autotune.cli import main
from autotune.space.search_space import Fixed, SearchSpace
from autotune.study.defaults import FEW, SHARES, racing_for, sampler_for


def experiment(searched: bool, baseline: bool) -> at.Experiment:
    made = racing([1.0])
    space = made.space if searched else SearchSpace({"rate": Fixed(1.0)})
    given = ({"rate": 1.0} if searched else {}) if baseline else None
    return at.Experiment(made.name, made.train, space, made.target, baseline=given)


@pytest.mark.parametrize(
    ("searched", "baseline", "trials", "name"),
    [
        (True, True, FEW, "widening"),
        (True, True, FEW + 1, "convergence"),
        (True, False, 5, "convergence"),
        (False, True, 5, "random"),
    ],
)
def test_it_goes_by_trials_and_baseline(
    searched: bool, baseline: bool, trials: int, name: str
) -> None:
    chosen, why = sampler_for(experiment(searched, baseline), trials)
    assert chosen == name
    assert why
    assert "\n" not in why
    assert "1 parameters" not in why


def test_a_study_names_what_was_chosen(fast_path: Path) -> None:
    simulate(experiment(True, True), fast_path / "study", 4, race, sampler="auto")
    assert (
        json.loads((fast_path / "study" / "experiment.json").read_text())["sampler"] == "widening"
    )


def test_a_study_that_goes_on_keeps_its_sampler(fast_path: Path) -> None:
    folder = fast_path / "study"
    for trials in (4, FEW + 4):
        simulate(experiment(True, True), folder, trials, race, sampler="auto")
        assert json.loads((folder / "experiment.json").read_text())["sampler"] == "widening"


def test_a_study_without_a_result_binds_nobody(fast_path: Path) -> None:
    folder = fast_path / "study"
    simulate(experiment(True, True), folder, 4, race, sampler="tpe")
    (folder / "journal.jsonl").unlink()
    simulate(experiment(True, True), folder, 4, race, sampler="auto")
    manifest = json.loads((folder / "experiment.json").read_text())
    assert manifest["sampler"] == "widening"
    assert "4 trials are few" in manifest["sampler_chosen_because"]


def test_the_reason_is_kept_and_shown(fast_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fast_path / "study"
    line = f"sampler: widening, as 4 trials are few (at most {FEW}), and there is a baseline"
    pool = RealTime(race, 4)
    simulate(experiment(True, True), folder, 4, pool=pool, sampler="auto")
    assert capsys.readouterr().err.count(f"{line}\n") == 1
    simulate(experiment(True, True), folder, 5, pool=RealTime(race, 4), sampler="widening")
    assert "sampler:" not in capsys.readouterr().err
    main.main(["status", str(folder)])
    assert f"  {line}\n" in capsys.readouterr().out, "kept where the study goes on"


def test_a_sampler_that_was_asked_for_needs_no_reason(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(experiment(True, True), fast_path / "study", 4, race, sampler="tpe")
    main.main(["status", str(fast_path / "study")])
    assert "sampler:" not in capsys.readouterr().out


def test_a_study_to_begin_with_is_experience_and_a_policy_alone_is_taken_up(
    fast_path: Path,
) -> None:
    first = fast_path / "first"
    simulate(experiment(True, True), first, 8, race, sampler="policy:elite")
    for source, sampler in ((first, "experienced"), (fast_path / "only", "policy:elite")):
        folder = fast_path / sampler
        simulate(experiment(True, True), folder, 4, race, sampler="auto", start_from=source)
        assert json.loads((folder / "experiment.json").read_text())["sampler"] == sampler
        (fast_path / "only").mkdir(exist_ok=True)
        shutil.copy(first / "policy.json", fast_path / "only")


# --- races ----------------------------------------------------------------------------------------


ASKED: dict[str, Any] = {"sampler": "auto", "racing": None}
LONG, SHORT = SHARES


@pytest.mark.parametrize(
    ("sampler", "trials", "controller", "share"),
    [
        ("convergence", LONG, None, 0.3),
        ("experienced", LONG, None, 0.3),
        ("convergence", LONG, "none", 0.3),
        ("convergence", LONG - 1, None, 0.2),
        ("experienced", SHORT, None, 0.2),
        ("convergence", SHORT - 1, None, 0.0),
        ("convergence", LONG, "pbt", 0.0),
        ("random", LONG, None, 0.0),
        (object(), LONG, None, 0.0),
    ],
)
def test_long_searches_that_learn_race_their_leaders(
    sampler: object, trials: int, controller: str | None, share: float
) -> None:
    chosen_share, why = racing_for(sampler, trials, controller)
    assert chosen_share == share
    assert (why is None) == (not share)


def raced(folder: Path) -> float:
    return float(json.loads((folder / "experiment.json").read_text())["racing"])


def test_races_are_run_and_reported(fast_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = RealTime(noisy_curve, 4)
    found = simulate(experiment(True, False), fast_path / "study", LONG, pool=pool, **ASKED)
    line = "racing: 0.3 of the training, as the fastest of more than 40 trials is partly luck"
    assert capsys.readouterr().err.count(line) == 1
    assert raced(fast_path / "study") == 0.3
    races = [t for t in found.trials if t.kind == "race"]
    assert races
    assert len(found.searched) == LONG, "they are on top of the trials"


def test_who_asks_for_none_has_none(fast_path: Path) -> None:
    asked = {"sampler": "convergence", "racing": 0}
    found = simulate(
        experiment(True, False), fast_path / "study", LONG, noisy_curve, workers=4, **asked
    )
    assert not any(t.kind == "race" for t in found.trials)


def test_a_study_that_goes_on_keeps_its_share(fast_path: Path) -> None:
    short, long = fast_path / "short", fast_path / "long"
    for trials in (10, LONG):
        simulate(experiment(True, False), short, trials, race, workers=4, **ASKED)
        assert raced(short) == 0.0
    simulate(experiment(True, False), long, LONG, race, workers=4, racing=0.1)
    simulate(experiment(True, False), long, LONG + 9, race, workers=4, **ASKED)
    assert raced(long) == 0.1


def test_a_study_without_a_result_binds_no_share(fast_path: Path) -> None:
    """Its target may have been the mistake, and be another one now."""
    folder, made = fast_path / "study", experiment(True, False)
    mistaken = replace(made, target=replace(made.target, metric="val_accurac"))
    with pytest.raises(at.UserError, match="val_accurac"):
        simulate(mistaken, folder, 10, race, sampler="convergence", racing=0)
    simulate(made, folder, LONG, race, workers=4, sampler="convergence", racing=None)
    assert raced(folder) == 0.3


def test_who_searches_nothing_races_nobody(fast_path: Path) -> None:
    asked = {"sampler": "convergence", "racing": None}
    simulate(experiment(True, False), fast_path / "new", LONG, race, search=False, **asked)
    assert raced(fast_path / "new") == 0.0


def test_a_replay_into_a_raced_study_is_refused_for_what_it_is(fast_path: Path) -> None:
    simulate(experiment(True, False), fast_path, LONG, race, workers=4, **ASKED)
    other = replace(experiment(True, False), name="other")
    with pytest.raises(at.UserError, match="holds another study"):
        simulate(other, fast_path, 2, race, seeds=(1, 2), racing=None)
