"""The command line as people type it: flags, mistakes, exit codes, a study from end to end."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import screens, text

from autotune.cli import main
from autotune.cli.console import UNREACHED, without_password
from autotune.study.flags import duration

RECIPES = str(Path(__file__).parents[1] / "support" / "toy_recipes.py")
FLAGS = {
    "run": "--trials --sampler --from --experience --pruner --controller --out --workers "
    "--cpus-per-worker --gpus-per-worker --seed --repeats --racing --stages --shared-beginnings "
    "--with --register --mirror --mix-hardware --time-limit --wait-idle --tracking-uri "
    "--max-concurrent-trials --backend --ray-address --local --json",
    "try": "--with --trials --workers --cpus-per-worker --gpus-per-worker --max-concurrent-trials "
    "--seed --pdb --json",
    "resume": "--trials --from-mlflow --out --register --time-limit --wait-idle --tracking-uri "
    "--max-concurrent-trials --backend --ray-address --local --json",
    "list": "--json",
    "status": "--json",
    "trials": "--csv --json",
    "best": "--json",
    "confirm": "--repeats --top --time-limit --wait-idle --tracking-uri --max-concurrent-trials "
    "--backend --ray-address --local --json",
    "export": "--to --trial --optuna",
    "replay": "--repeats --out --time-limit --wait-idle --tracking-uri --max-concurrent-trials "
    "--backend --ray-address --local --json",
    "report": "--to",
    "compare": "--baseline --allow --target --report --csv --tracking-uri --json",
    "scale": "--workers --also --json",
    "ui": "--host --port",
    "experience": "--mlflow --experience --json",
    "train-policy": "--data --experience --out --minutes --studies --seed",
    "doctor": "--json",
    "submit": "--trials --sampler --from --experience --pruner --controller --out --workers "
    "--cpus-per-worker --gpus-per-worker --seed --repeats --racing --stages --shared-beginnings "
    "--with --register --mirror --mix-hardware --time-limit --wait-idle --tracking-uri "
    "--max-concurrent-trials --address --follow --driver-cpus --driver-resources --pip --env "
    "--json",
    "jobs": "--address --json",
    "logs": "--follow --address",
    "cancel": "--address",
}


def autotune(*arguments: str, cwd: Path, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autotune", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout)


# --- the entry points -----------------------------------------------------------------------------


def test_commands_and_flags_are_frozen() -> None:
    flags = {
        name: [word for flag, _ in entries for word in flag.split() if word.startswith("--")]
        for name, (_, _, entries) in main.COMMANDS.items()
    }
    assert {name: " ".join(words) for name, words in flags.items()} == FLAGS


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("0.5m", 30),
        ("10min", 600),
        ("1h5min3s", 3903),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10x", "-5", "0", "0s", "1m2", "nan", "10mins"])
def test_bad_duration(text: str) -> None:
    with pytest.raises(ValueError, match="must be "):
        duration(text)


MISTAKES = [
    (["rum"], "unknown command 'rum'; did you mean 'run'?"),
    (["run"], "the following arguments are required: RECIPE"),
    (["run", "x:y", "--trails", "3"], "unknown argument '--trails'; did you mean '--trials'?"),
    (["run", "x:y", "--trials", "many"], "--trials: must be a whole number but got 'many'"),
    (["run", "nocolon"], "must be module:function or path/file.py:function"),
    (["run", "search_spaces.digit:sgd"], "did you mean 'search_spaces.digits'?"),
    (["run", "search_spaces.digits:sdg"], "unknown function 'sdg'; did you mean 'sgd'?"),
    (["run", f"{RECIPES}:good", "--with", "a=1"], "takes no arguments but got a (--with)"),
    (["run", f"{RECIPES}:good", "--with", "a"], "--with: must be like data=DIR but got 'a'"),
    (["run", "x:y", "--with", "a=1", "--with", "a=2"], "--with a is given twice"),
    (["run", f"{RECIPES}:paced_by"], "needs --with speed=NUMBER"),
    (["try", f"{RECIPES}:paced_by"], "needs --with speed=NUMBER"),
    (["try", f"{RECIPES}:good", "--with", "a=1"], "takes no arguments but got a (--with)"),
    (["try", f"{RECIPES}:paced_by", "--with", "sped=1"], "'sped'; did you mean 'speed'?"),
    (["run", f"{RECIPES}:paced_by", "--with", "speed=x"], "speed must be a number but got 'x'"),
    (["run", "none.py:x"], "recipe file 'none.py' does not exist"),
    (["run", f"{RECIPES}:nothing"], "must return an Experiment but got None"),
    (["run", f"{RECIPES}:mistyped_keyword"], "'scalling'; did you mean 'scaling'?"),
    (["run", f"{RECIPES}:mistyped_setting"], "'mod'; did you mean 'mode'?"),
    (["run", f"{RECIPES}:negative_limit"], "limit must be more than 0 seconds but got -5"),
    (["run", f"{RECIPES}:empty_range"], "Float(2, 1) is an empty range"),
    (["run", f"{RECIPES}:wrong_type"], "Experiment space must be a SearchSpace"),
    (["run", f"{RECIPES}:wrong_baseline"], "'sped'; did you mean 'speed'?"),
    (["run", f"{RECIPES}:good", "--trials", "0"], "trials must be a whole number >= 1 but got 0"),
    (["run", f"{RECIPES}:good", "--seed", "-1"], "seed must be a whole number >= 0 but got -1"),
    (["run", f"{RECIPES}:good", "--time-limit", "soon"], "--time-limit: must be like 90s"),
    (["run", f"{RECIPES}:good", "--wait-idle", "0"], "--wait-idle: must be more than 0 seconds"),
    (["run", f"{RECIPES}:good", "--sampler", "tpee"], "did you mean 'tpe'?"),
    (["run", f"{RECIPES}:good", "--sampler", "optuna.samplers.TPESampler(sed=1)"], "'seed'"),
    (["run", f"{RECIPES}:good", "--pruner", "hyperbnd"], "unknown pruner 'hyperbnd'"),
    (["run", f"{RECIPES}:good", "--controller", "polcy"], "did you mean 'policy'?"),
    (["run", f"{RECIPES}:good", "--controller", "mine.py:f"], "'mine.py' does not exist"),
    (["run", f"{RECIPES}:good", "--controller", "policy", "--from", "."], "no controller.json"),
    (["run", f"{RECIPES}:good", "--controller", "pbt"], "has nothing to explore"),
    (["run", f"{RECIPES}:good", "--tracking-uri", "htp://x"], "unknown scheme 'htp'"),
    (["run", f"{RECIPES}:good", "--out", "/proc/nowhere"], "cannot write the study folder"),
    (["run", f"{RECIPES}:good", "--mirror"], "--mirror needs the --tracking-uri of an MLflow"),
    (["run", f"{RECIPES}:good", "--mirror", "--tracking-uri", "sqlite:///x.db"], "that keeps"),
    (["run", f"{RECIPES}:good", "--mirror", "--tracking-uri", "http://127.0.0.1:1"], "Errno 111"),
    (["resume", "toy", "--from-mlflow", "sqlite:///x.db"], "of an MLflow server"),
    (["status", "."], "is not a study folder"),
    (["resume", "nowhere"], "is not a study folder"),
    (["best", "nowhere"], "is not a study folder"),
    (["list"], "studies cannot be read: No such file or directory"),
    (["list", "."], ". holds no study: no folder in it has an experiment.json"),
    (["trials", "nowhere", "--csv"], "is not a study folder"),
    (["confirm", "nowhere"], "is not a study folder"),
    (["confirm", "x", "--repeat", "3"], "unknown argument '--repeat'; did you mean '--repeats'?"),
    (["run", f"{RECIPES}:good", "--repeats", "-1"], "repeats must be a whole number >= 0"),
    (["ui", "nowhere"], "is not a study folder"),
    (["report", "nowhere"], "is not a study folder"),
    (["ui", "caf\udce9"], "caf\\udce9 is not a study folder"),
    (["compare", "nowhere"], "nowhere does not exist"),
    (["scale", "nowhere"], "is not a study folder"),
    (["scale", "nowhere", "--workers", "2", "0"], "whole numbers from 1 to 1,000,000 but got 0"),
    (["scale", "nowhere", "--workers", "two"], "--workers: must be a whole number but got 'two'"),
    (["run", f"{RECIPES}:good", "--controller", "pbt(every=2)"], "unknown argument of pbt 'every'"),
    (["run", f"{RECIPES}:good", "--register", "x"], "but train has no train.model = function"),
    (["compare", "x.tsv", "--target", "top5"], "--target must be like top5=93"),
    (["compare", "mlflow:x"], "must be named like mlflow:EXPERIMENT/RUN"),
    (["confirm", ".", "--top", "0"], "top must be a whole number >= 1 but got 0"),
    (["confirm", ".", "--repeats", "-1"], "repeats must be a whole number >= 0 but got -1"),
    (["resume", ".", "--trials", "0"], "trials must be a whole number >= 1 but got 0"),
    (["replay", ".", "--repeats", "-1"], "repeats must be a whole number >= 0 but got -1"),
    (["run", f"{RECIPES}:good", "--time-limit", "9" * 400], "at most 1e+09"),
    (["run", f"{RECIPES}:good", "--stages", "on"], "must be auto or off but got 'on'"),
    (
        ["run", f"{RECIPES}:good", "--shared-beginnings", "1"],
        "--shared-beginnings: must be auto or off but got '1'",
    ),
    (["run", f"{RECIPES}:good", "--racing", "nan"], "must be a share like 0.2"),
    (["run", f"{RECIPES}:good", "--racing", "1"], "must be a share like 0.2"),
    (["run", f"{RECIPES}:good", "--trials", "9" * 5000], "--trials: "),
    (["run", f"{RECIPES}:good", "--out", "x" * 5000], "File name too long"),
    (["run", f"{RECIPES}:raises"], "RuntimeError: no data today (/"),
    (["run", f"{RECIPES}:leaves"], "it called sys.exit(0)"),
    (["status", "x" * 5000], "File name too long"),
    (["jobs", "--address", "http://[::1"], "--address must be the dashboard's"),
    (["compare", ".", "--target", "acc=nan"], "--target"),
    (["export", ".", "--to", "x", "--trial", "-1"], "is not a study folder"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), MISTAKES, ids=[" ".join(a)[-60:] for a, _ in MISTAKES]
)
def test_a_mistake_gets_one_clear_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ray_address: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(arguments) == main.USER
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def empty_arguments() -> list[list[str]]:
    """Each argument of each command, empty, beside the positional ones that it needs."""
    made = []
    for command, (_, _, rows) in main.COMMANDS.items():
        needed = [name for name, _ in rows if not name.startswith("-")]
        for name, settings in rows:
            if settings.get("action") in ("store_true", "store_const"):
                continue
            if name in needed:
                made.append([command, *("" if other == name else "x" for other in needed)])
            else:
                made.append([command, *needed, name, ""])
    return made


def test_no_argument_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in empty_arguments():
        assert main.main(words) == main.USER, words
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert "must not be empty" in err, words
    assert list(tmp_path.iterdir()) == []


def test_a_request_that_can_never_fit_says_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ray_address: str
) -> None:
    arguments = ["run", f"{RECIPES}:too_large", "--out", str(tmp_path / "study")]
    assert main.main(arguments) == main.USER
    assert "999 workers with 1 CPU each can never fit: the cluster has 1 node (2 CPU" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "study").exists()


def test_a_password_does_not_stay_in_a_tracking_uri(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")
    assert without_password("https://me:p%40ss@host:5000/x") == "https://host:5000/x"
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == "me"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "p@ss"
    err = capsys.readouterr().err
    assert "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead" in err
    assert err.count("\n") == 1
    assert "p@ss" not in err
    assert "p%40ss" not in err
    for uri in ("postgresql://me:pw@host/db", "http://host", "off", None):
        assert without_password(uri) == uri
    assert capsys.readouterr().err == ""


# --- studies --------------------------------------------------------------------------------------


def test_a_metric_that_is_never_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ray_address: str
) -> None:
    out = ["--out", str(tmp_path / "study"), "--tracking-uri", "off", "--trials", "1"]
    assert main.main(["run", f"{RECIPES}:unknown_metric", *out]) == main.USER
    assert "unknown target metric 'val_acuracy'; did you mean 'val_accuracy'?" in (
        capsys.readouterr().err
    )
    assert main.main(["run", f"{RECIPES}:returns_nothing", *out]) == main.USER
    said = "the trainer returned None and never reported the target's metric 'val_accuracy': return"
    assert said in capsys.readouterr().err
    assert main.main(["run", f"{RECIPES}:good", *out]) == main.DONE  # the folder is free again


def test_nothing_reached_is_exit_3(tmp_path: Path, ray_address: str) -> None:
    out = ["--out", str(tmp_path / "study"), "--tracking-uri", "off", "--trials", "2"]
    assert main.main(["run", f"{RECIPES}:unreachable", *out]) == UNREACHED
    assert main.main(["best", str(tmp_path / "study")]) == UNREACHED


@pytest.mark.slow
def test_a_trainer_that_always_fails_is_exit_4_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ray_address: str
) -> None:
    out = ["--out", str(tmp_path / "study"), "--tracking-uri", "off"]
    assert main.main(["run", f"{RECIPES}:failing", *out]) == main.BROKEN
    err = capsys.readouterr().err
    raised = err.index('raise RuntimeError("a bug of the trainer\'s")')
    said = err.index("failed; the study goes on (5 failures in a row end it)")
    assert (
        raised < said < err.index("autotune: the study could not go on: 5 trials failed in a row")
    )
    assert "autotune resume" in err
    assert "/autotune/" not in err


@pytest.mark.slow
def test_a_study_from_end_to_end(tmp_path: Path) -> None:
    """`run --json` in a process of its own, then everything that one does with its folder."""
    asked = ("--trials", "4", "--racing", "0", "--out", "s", "--json", "--tracking-uri", "off")
    run = autotune("run", f"{RECIPES}:good", *asked, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert [t["trial"] for t in result["trials"]] == [0, 1, 2, 3]
    assert result["baseline"]["state"] == "REACHED"
    assert result["best"]["time_to_target_seconds"] == min(
        t["time_to_target_seconds"] for t in result["trials"] if t["state"] == "REACHED"
    )

    best = autotune("best", "s", "--json", cwd=tmp_path)
    assert json.loads(best.stdout) == result["best"]
    status = json.loads(autotune("status", "s", "--json", cwd=tmp_path).stdout)
    assert status["counts"] == result["counts"]
    assert (status["driver_alive"], status["trials_planned"]) == (False, 4)

    other = autotune("run", f"{RECIPES}:unreachable", "--out", "s", cwd=tmp_path)
    assert other.returncode == 2
    assert (
        "holds another study: its target.value is 0.9 and not 1000000.0; choose another folder"
        in other.stderr
    )

    more = autotune("resume", "s", "--trials", "5", "--json", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert [t["trial"] for t in json.loads(more.stdout)["trials"]] == [0, 1, 2, 3, 4]
    fewer = autotune("resume", "s", "--trials", "2", cwd=tmp_path)
    assert fewer.returncode == 2
    assert "(--trials) is a total and must be at least " in fewer.stderr
    assert " but got " in fewer.stderr

    export = autotune("export", "s", "--optuna", "sqlite:///optuna.db", cwd=tmp_path)
    assert "wrote 5 trials" in export.stderr
    assert (tmp_path / "optuna.db").stat().st_size > 0


@pytest.mark.slow
def test_the_arguments_of_a_recipe_stay_with_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_address: str
) -> None:
    """Where it is gone on with from another folder, too."""
    monkeypatch.chdir(tmp_path)
    given = ["--with", "speed=0.2", "--with", "folder=in", "--trials", "1", "--out", "s"]
    assert main.main(["run", f"{RECIPES}:paced_by", *given, "--tracking-uri", "off"]) == main.DONE
    kept = json.loads(Path("s/experiment.json").read_text())
    assert kept["recipe_arguments"] == {"speed": "0.2", "folder": str(tmp_path / "in")}
    assert kept["baseline"] == {"speed": 0.2}
    monkeypatch.chdir("/")
    study = str(tmp_path / "s")
    assert main.main(["resume", study, "--trials", "2"]) == main.DONE
    assert main.main(["confirm", study, "--repeats", "1", "--top", "1"]) == main.DONE
    assert json.loads((tmp_path / "s/experiment.json").read_text()) == {
        **kept,
        "trials": 2,
        "repeats": 1,
        "top": 1,
        "versions": kept["versions"],
    }


@pytest.mark.slow
def test_a_terminal_gets_a_live_display(tmp_path: Path, bare_ray: str) -> None:
    """On a terminal the progress is redrawn, and the table follows what stays of it."""
    arguments = ["run", f"{RECIPES}:beaten", "--trials", "2", "--tracking-uri", "off"]
    arguments += ["--out", "s", "--ray-address", bare_ray]
    command = [sys.executable, "-m", "autotune", *arguments]
    (screen,) = screens(command, 40, 80, tmp_path)
    shown = text(screen)
    assert shown.count("toy: 2/2 trials · 2 reached · spent 00:") == 1, shown
    assert "best 0." in shown
    assert "starting" not in shown
    assert "running" not in shown
    assert "time to val_accuracy 0.9" in shown
    assert "faster (one run each, not confirmed)" in shown.replace("\n", " ")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main.main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in main.COMMANDS)
    assert issubclass(main._Parser, argparse.ArgumentParser)
