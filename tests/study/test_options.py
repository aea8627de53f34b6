"""The options of a study are defined once: `run`, command line and manifest have them all."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from sims import racing

import autotune as at
from autotune.algorithms import controllers, names
from autotune.cli import arguments, main
from autotune.cli import given as given_values
from autotune.cli.jobs import commands as jobs
from autotune.study.driver.settings import StudySettings
from autotune.study.factory import check_named
from autotune.study.options import StudyOptions, options, options_from_json

NAMES = [option.name for option in options()]
KEPT = {  # what a resumed study needs, by its key in experiment.json
    *("trials", "sampler", "start_from", "pruner", "controller", "seed", "repeats", "top"),
    *("workers", "cpus_per_worker", "gpus_per_worker"),
    *("racing", "stages", "mirrored", "mix_hardware", "tracking_uri", "ray_address", "recipe"),
    *("recipe_arguments", "backend", "concurrent_trials", "experience", "shared_beginnings"),
}


def parsed(kind: type, *words: str) -> Any:
    return given_values.taken(kind, main._parse(words))


# --- run ------------------------------------------------------------------------------------------


def test_run_shows_every_option_by_keyword() -> None:
    first, *shown = inspect.signature(at.run).parameters.values()
    assert (first.name, first.kind) == ("experiment", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert [p.name for p in shown] == NAMES == [f.name for f in fields(StudyOptions)]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in shown)
    assert {p.name: p.default for p in shown} == {o.name: o.default for o in options()}


def test_run_explains_every_option() -> None:
    document = inspect.getdoc(at.run)
    assert document is not None
    missing = [name for name in NAMES if f"\n    {name}: " not in document]
    assert not missing


def test_a_mistyped_keyword_gets_one_line_with_the_nearest_name(fast_path: Path) -> None:
    with pytest.raises(at.UserError, match="unknown argument of run 'trails'; did you mean 'tria"):
        at.run(racing([1.0]), trails=3, out=fast_path)
    assert list(fast_path.iterdir()) == []


def test_what_is_no_experiment_is_refused() -> None:
    with pytest.raises(at.UserError, match="run needs an Experiment but got 3"):
        at.run(3, trials=1)
    with pytest.raises(TypeError):
        at.run(racing([1.0]), 3)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("trials", 0, "a whole number >= 1"),
        ("trials", True, "a whole number >= 1"),
        ("workers", 0, "a whole number >= 1"),
        ("cpus_per_worker", 0, "a number of cores, whole or a fraction below 1,"),
        ("cpus_per_worker", float("inf"), "a number of cores, whole or a fraction below 1,"),
        ("gpus_per_worker", 1.5, "0 or a number of GPUs, whole or a fraction below 1,"),
        ("gpus_per_worker", -1, "0 or a number of GPUs, whole or a fraction below 1,"),
        ("gpus_per_worker", False, "0 or a number of GPUs, whole or a fraction below 1,"),
        ("seed", -1, "a whole number >= 0"),
        ("seed", 1.0, "a whole number >= 0"),
        ("repeats", -1, "a whole number >= 0"),
        ("top", 0, "a whole number >= 1"),
        ("seed", "3", "a whole number >= 0"),
        ("time_limit", 0, "more than 0 seconds (at most 1e9)"),
        ("time_limit", 1e12, "more than 0 seconds (at most 1e9)"),
        ("sampler", 3, "a name or a sampler"),
        ("pruner", None, "a name or a function"),
        ("controller", 0.5, "a name or a function"),
        ("start_from", 3, "a path or a list of paths"),
        ("start_from", (), "a path or a list of paths"),
        ("start_from", ("a", ""), "a path or a list of paths"),
        ("experience", 3, "a folder or off"),
        ("out", "", "a path"),
        ("tracking_uri", 3, "text"),
        ("ray_address", ("a", 1), "text"),
        ("mirror", "yes", "True or False"),
        ("search", None, "True or False"),
        ("seeds", (1, "2"), "whole numbers >= 0"),
        ("watch", "print", "a function"),
        ("pool", 3, "a pool"),
        ("racing", 1, "a share, at least 0 and below 1,"),
        ("racing", True, "a share, at least 0 and below 1,"),
    ],
)
def test_a_value_outside_its_range_names_key_value_and_rule(
    name: str, value: Any, rule: str
) -> None:
    with pytest.raises(at.UserError) as caught:
        StudyOptions(**{name: value})
    assert str(caught.value) == f"{name} must be {rule} but got {value!r}"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"sampler": "TPE"}, {"sampler": "tpe"}),
        ({"sampler": "Policy:Elite"}, {"sampler": "policy:elite"}),
        ({"sampler": "optuna.samplers.TPESampler"}, {"sampler": "optuna.samplers.TPESampler"}),
        ({"sampler": "Unknown"}, {"sampler": "Unknown"}),  # refused where the study begins
        ({"pruner": "Hyperband(brackets=2)"}, {"pruner": "hyperband(brackets=2)"}),
        ({"pruner": "Mine.py:Asha"}, {"pruner": "Mine.py:Asha"}),
        ({"controller": "PBT"}, {"controller": "pbt"}),
        ({"controller": "None"}, {"controller": "none"}),
        ({"backend": "Local"}, {"backend": "local"}),
        ({"experience": "None"}, {"experience": "off"}),
        ({"start_from": ["/a"]}, {"start_from": "/a"}),
        ({"start_from": ["/a", "/b"]}, {"start_from": ["/a", "/b"]}),
    ],
)
def test_names_mean_the_same_in_any_case_and_are_kept_as_they_are_known(
    given: dict[str, Any], kept: dict[str, Any]
) -> None:
    options = StudyOptions(**given)
    assert options == StudyOptions(**kept)
    assert kept.items() <= options.to_json().items()


def test_a_time_may_be_a_text_as_on_the_command_line() -> None:
    options = StudyOptions(time_limit="10min", wait_idle="90")
    assert (options.time_limit, options.wait_idle) == (600.0, 90.0)
    with pytest.raises(at.UserError, match="time_limit must be like 90s, 10m or 1h30m but got 'x'"):
        StudyOptions(time_limit="x")


def test_names_that_are_known_without_their_modules_are_all_there_are() -> None:
    assert {*names.CONTROLLERS} == {*controllers.CONTROLLERS}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sampler": "TPESampler"}, "unknown sampler 'TPESampler'; did you mean 'tpe'?"),
        ({"sampler": "GPSampler"}, "did you mean 'gp'?"),
        ({"sampler": "policy:elit"}, "unknown sampler 'policy:elit'; did you mean 'policy:elite'?"),
        (
            {"sampler": "policy:mine.pt"},
            "sampler must be policy:FILE.npz, or policy:elite, but got 'policy:mine.pt'",
        ),
        ({"sampler": "tpe(seed=1)"}, "sampler 'tpe' takes no arguments"),
        ({"sampler": "optuna.samplers.TPESampler(seed=x)"}, "arguments must be plain values"),
        ({"pruner": "HyperbandPruner"}, "did you mean 'hyperband'?"),
        ({"pruner": "asha(reduction=0)"}, "asha reduction must be more than 1 but got 0"),
        ({"pruner": "ASHA(reductoin=2)"}, "did you mean 'reduction'?"),
        ({"controller": "Polcy"}, "did you mean 'policy'?"),
        ({"controller": "pbt(intervall=2)"}, "did you mean 'interval'?"),
        ({"controller": "regulator(every=0)"}, "every must lie between 0 and 1"),
        ({"controller": "pb2"}, "controller 'pb2' was removed"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_made(
    options: dict[str, str], says: str
) -> None:
    with pytest.raises(at.UserError) as caught:
        check_named(StudyOptions(**options))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_number_beyond_63_bits_is_told_in_one_line() -> None:
    with pytest.raises(at.UserError, match="seed must be a whole number >= 0 but got a whole numb"):
        StudyOptions(seed=10**5000)


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(at.UserError, match="one for each of 3 trials but got 2"):
        StudyOptions(trials=3, seeds=(1, 2))
    for more in ({"repeats": 1}, {"racing": 0.1}):
        with pytest.raises(at.UserError, match="with seeds all trials are repeats already"):
            StudyOptions(trials=2, seeds=(1, 2), **more)


def test_a_driver_s_settings_take_their_values_from_options_of_the_same_names() -> None:
    own = {"experiment", "pruner", "controller", "checkpoints", "look"}
    assert {f.name for f in fields(StudySettings)} - own <= {*NAMES}


# --- the manifest ---------------------------------------------------------------------------------


def test_the_manifest_keeps_what_a_resumed_study_needs() -> None:
    made = StudyOptions(trials=4, sampler="tpe", repeats=2, racing=0.1, mirror=True)
    assert made.to_json().keys() == KEPT
    assert options_from_json(made.to_json()) == made


# --- the command line -----------------------------------------------------------------------------


def test_a_flag_for_each_option_has_its_default() -> None:
    given = parsed(given_values.RunArguments, "run", "a:b")
    assert given.options == StudyOptions()
    flags = {option.flag.name for option in options() if option.flag is not None}
    words = {row[0] for row in (*arguments.RUN, *arguments.CONFIRM)}
    assert flags <= words


def test_what_was_given_is_frozen() -> None:
    words = ("run", "a:b", "--trials", "7", "--from", "x", "--time-limit", "2m", "--mirror")
    given = parsed(given_values.RunArguments, *words)
    expected = StudyOptions(trials=7, start_from=Path("x"), time_limit=120.0, mirror=True)
    assert given == given_values.RunArguments("a:b", expected, None, False)
    with pytest.raises(FrozenInstanceError):
        given.recipe = "c:d"


def test_a_command_with_a_study_takes_only_the_options_that_were_given() -> None:
    """The others are those in the manifest."""
    given = parsed(given_values.ResumeArguments, "resume", "s", "--trials", "9", "--json")
    assert given == given_values.ResumeArguments(Path("s"), {"trials": 9}, None, None, True)
    given = parsed(given_values.ConfirmArguments, "confirm", "s", "--top", "1")
    assert given.options == {"repeats": 5, "top": 1}
    assert parsed(given_values.ReplayArguments, "replay", "e").options == {"repeats": 3}


def test_a_job_s_run_is_given_the_options_that_its_submission_was() -> None:
    """All options of `run` but the place, which the cluster has another of."""
    words = [
        "--sampler",
        "tpe",
        "--from",
        "/e",
        "--from",
        "/f",
        "--experience",
        "/g",
        "--seed",
        "3",
        "--racing",
        ".5",
        "--mirror",
    ]
    words += ["--workers", "2", "--cpus-per-worker", "4", "--gpus-per-worker", "0.5"]
    words += ["--time-limit", "90s", "--tracking-uri", "http://h", "--register", "m"]
    here = parsed(given_values.RunArguments, "run", "a:b", *words)
    there = parsed(given_values.RunArguments, *jobs._words("a:b", here.options, here.register))
    assert there == here


def test_texts_of_the_command_line_say_what_they_must_be() -> None:
    for words, message in (
        (("run", "a:b", "--racing", "2"), "must be a share like 0.2, below 1, but got '2'"),
        (("run", "a:b", "--cpus-per-worker", "9" * 400), "must be a number like 1 or 0.5 but got"),
        (("run", "a:b", "--gpus-per-worker", "all"), "must be a number like 1 or 0.5 but got 'all"),
        (("run", "a:b", "--seed", "x"), "--seed: must be a whole number but got 'x'"),
        (("confirm", "s", "--top", "1.5"), "--top: must be a whole number but got '1.5'"),
    ):
        with pytest.raises(at.UserError, match=message):
            main._parse(words)
