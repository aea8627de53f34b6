"""Arguments are checked before anything slow is imported."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli import completion

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "tests" / "storage" / "data" / "searched"
RECIPE = "search_spaces.digits:lars"
WRONG = [
    (["run", RECIPE, "--sampler", "TPESampler"], "did you mean 'tpe'?"),
    (["run", RECIPE, "--sampler", "tpe(seed=1)"], "sampler 'tpe' takes no arguments"),
    (["run", RECIPE, "--pruner", "Hyperbnd"], "did you mean 'hyperband'?"),
    (["run", RECIPE, "--pruner", "asha(reduction=0)"], "reduction must be more than 1"),
    (["run", RECIPE, "--controller", "polcy"], "did you mean 'policy'?"),
    (["run", RECIPE, "--controller", "pbt(ever=2)"], "unknown argument of pbt 'ever'"),
    (["run", RECIPE, "--backend", "spark"], "unknown backend 'spark'"),
    (["run", RECIPE, "--trials", "0"], "trials must be a whole number >= 1 but got 0"),
    (["run", RECIPE, "--time-limit", "soon"], "--time-limit: must be like 90s"),
    (["run", RECIPE, "--wait-idle", "0"], "--wait-idle: must be more than 0"),
    (["run", RECIPE, "--with", "data"], "--with: must be like data=DIR"),
    (["run", RECIPE, "--out", "file/x"], "cannot write the study folder file/x: Not a directory"),
    (["run", RECIPE, "--tracking-uri", "htp://x"], "unknown scheme 'htp'"),
    (["run", RECIPE, "--mirror"], "--mirror needs the --tracking-uri of an MLflow server"),
    (["run", RECIPE, "--register", "a/b"], "--register must be a model's name"),
    (["try", RECIPE, "--trials", "x"], "--trials: must be a whole number"),
    (["try", RECIPE, "--with", "data"], "--with: must be like data=DIR"),
    (
        ["resume", "study", "--trials", "1"],
        "(--trials) is a total and must be at least 10",
    ),
    (["resume", "study", "--trials", "20", "--tracking-uri", "htp://x"], "unknown scheme 'htp'"),
    (["resume", "study", "--trials", "20", "--register", "a/b"], "--register must be"),
    (["resume", "study", "--backend", "spark"], "unknown backend 'spark'"),
    (["resume", "study", "--out", "x"], "--out is for --from-mlflow"),
    (["resume", "removed"], "controller 'pb2' was removed"),
    # Of 20 planned trials 10 are there: 16 in all are fewer than planned, and are allowed.
    (["resume", "removed", "--trials", "16"], "controller 'pb2' was removed"),
    (["confirm", "study", "--repeats", "0"], "--repeats must be a whole number >= 1"),
    (["confirm", "study", "--tracking-uri", "htp://x"], "unknown scheme 'htp'"),
    (["submit", RECIPE, "--sampler", "TPESampler"], "did you mean 'tpe'?"),
    (["submit", RECIPE, "--driver-resources", "x", "--out", "/x"], "must be like head=1"),
    (["submit", RECIPE], "submit needs --out DIR"),
    (["submit", RECIPE, "--out", "x"], "--out must be an absolute path"),
]


def write_study(folder: Path, **changed: object) -> None:
    shutil.copytree(STUDY, folder)
    manifest = json.loads((folder / "experiment.json").read_text())
    changed = {"recipe": RECIPE, **changed}
    (folder / "experiment.json").write_text(json.dumps({**manifest, **changed}))


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """What all of them said, one after the other in one process, and what was imported by then."""
    folder = tmp_path_factory.mktemp("arguments")
    write_study(folder / "study")
    write_study(folder / "removed", controller="pb2", trials=20)
    (folder / "file").touch()
    code = (
        "import contextlib, io, json, sys\n"
        "from autotune.cli import main\n"
        "slow = ('torch', 'ray', 'optuna', 'mlflow', 'search_spaces.digits')\n"
        f"for words in {[words for words, _ in WRONG]!r}:\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as err:\n"
        "        code = main.main(words)\n"
        "    imported = [name for name in slow if name in sys.modules]\n"
        "    print(json.dumps({'code': code, 'err': err.getvalue(), 'imported': imported}))\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in folder.iterdir()) == ["file", "removed", "study"]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("number", "says"),
    [(number, says) for number, (_, says) in enumerate(WRONG)],
    ids=[" ".join(words).replace(RECIPE, "RECIPE") for words, _ in WRONG],
)
def test_a_wrong_argument_is_one_line_before_anything_slow_is_imported(
    number: int, says: str, said: list[dict[str, object]]
) -> None:
    answer = said[number]
    assert says in str(answer["err"])
    assert (answer["code"], str(answer["err"]).count("\n"), answer["imported"]) == (2, 1, [])


# --- completion -----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two studies and a recipe of its own."""
    write_study(tmp_path / "studies" / "digits")
    write_study(tmp_path / "other")
    (tmp_path / "mine.py").write_text(
        "import nowhere\n"
        "def _helper() -> Experiment: ...\n"
        "def train(config) -> float: ...\n"
        "def fast(data: str, *, size: int = 3) -> at.Experiment: ...\n"
        "def slow(): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(line: str, folder: Path, *python: str) -> tuple[set[str], str]:
    """The words that may follow on the line, as the shell gets them, and stderr."""
    environment = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
        "PYTHONPATH": str(ROOT),
    }
    shell = 'exec "$0" "$@" -m autotune 8>&1 9>/dev/null'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, *python],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return {word.strip() for word in done.stdout.split("\n")} - {""}, done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("autotune re", {"resume", "replay", "report"}),
        ("autotune run x:y --wa", {"--wait-idle"}),
        ("autotune run x:y --sampler TP", {"tpe"}),
        ("autotune run x:y --trials ", set()),
        ("autotune status s", {"studies/"}),
        ("autotune experience ", {"list", "add", "remove", "export"}),
        ("autotune experience add stud", {"studies/"}),
    ],
)
def test_the_shell_completes_what_was_typed(line: str, words: set[str], place: Path) -> None:
    assert completed(line, place)[0] == words


def test_recipes_are_completed_from_their_text_and_nothing_slow_is_imported(place: Path) -> None:
    found, imported = completed(f"autotune run {RECIPE[:-1]}", place, "-X", "importtime")
    assert found == {RECIPE}
    names = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert "autotune.cli.completion" in names
    slow = {"torch", "ray", "optuna", "mlflow", "numpy", "search_spaces", "search_spaces.digits"}
    assert not names & slow


def test_what_may_follow(place: Path) -> None:
    assert {RECIPE, "mine.py:", "other/"} <= {*completion._recipes("")}
    assert completion._recipes("mine.py:f") == ["mine.py:fast", "mine.py:slow"]
    assert completion._recipes("nowhere/") == completion._shipped()
    assert completion._studies("") == ["other", "studies/", "studies/digits"]
    assert completion._studies("studies/d") == ["studies/digits"]
    assert completion._studies("nowhere/x") == []
    for recipe, names in (
        ("mine.py:fast", ["data=", "size="]),
        ("search_spaces.images:folder", ["data=", "model=", "seconds="]),
        ("mine.py:none", []),
        ("else.where:x", []),
    ):
        typed = argparse.Namespace(recipe=recipe)
        assert completion._arguments("", parsed_args=typed)[:3] == names
