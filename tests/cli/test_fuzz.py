"""Commands that would run something, with any arguments and on damaged folders: one line each.

`make soak` tries more of them; `FUZZ_SEED` and `FUZZ_CASES` choose others. The commands that only
read, and drivers, are tried by `fuzz.py` in the soak.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import fuzz
import pytest

from autotune.cli import main
from autotune.cli.jobs import client
from autotune.errors import StudyError
from autotune.study import place
from autotune.tracking import mirror

DATA = Path(__file__).parents[1] / "storage" / "data"
RECIPE = Path(__file__).parents[1] / "support" / "toy_recipes.py"
STUDIES = sorted(p.name for p in DATA.iterdir() if p.is_dir())
SEED = int(os.environ.get("FUZZ_SEED", "18"))
CODES = (main.DONE, 3, main.USER, main.BROKEN)
COMMANDS = (
    *("resume s", "confirm s --repeats 1", "ui s", "export s --optuna sqlite:///o.db"),
    *("compare s#0 s --json", "best s", "status s", "trials s --csv", "list .", "scale s"),
)
# No word names a place outside of the test's folder that can be written.
NUMBERS = (
    *("0", "-1", "1", "3", "1e400", "nan", "inf", "1.5", "0.2", "1h", "0s", "1e9"),
    *("9" * 30, "9" * 400, "9" * 5000),
)
PLACES = (
    *("/proc/nowhere", "bytes", "empty", "folder", "s", "whole", "s#0", "s#99", "x" * 5000),
    *("s/journal.jsonl", "caf\udce9", "r.py:good", "r.py:raises", "r.py:leaves", "r.py:nothing"),
    *("r.py:train", "r.py:", ":good", "bytes:x", "torch:ones", "http://[::1", "mlflow:"),
    *("sqlite:///x.db", "sqlite:///", "sqlite:////proc/x.db", "file:///x"),
)
TEXTS = (
    *("", "x", "none", "off", "\x1b[31m", "a b", "'", "%s%n", "{}", "A=B", "a=nan", "=", "trial:9"),
    *("tpe(", "optuna.samplers.TPESampler(seed=-1)", "os.path", "pbt(interval=nan)", "asha("),
    *("asha(reduction=0)", "asha(reduction='x')", "policy:ppo", "hyperband()", "top5>=inf"),
)
WORDS = (*NUMBERS, *PLACES, *TEXTS)
RIGHT = {"recipe": "r.py:good", "folder": "s", "export": "whole", "sources": "s", "job": "j"}
RIGHT |= {"action": "add", "names": "s"}


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, without Ray and MLflow: what is damaged is seen before they start."""

    def no_ray(*_: Any) -> None:
        raise StudyError("no Ray in this test")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(place, "made_pool", no_ray)
    monkeypatch.setattr(mirror, "catch_up", lambda *_: None)
    monkeypatch.setattr(mirror, "ui_command", no_ray)
    monkeypatch.setattr(client, "_reach", no_ray)
    return tmp_path


def study(place: Path, name: str) -> Path:
    """One of the older studies, as if a recipe had made it."""
    folder = place / "s"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(place / "out", ignore_errors=True)
    shutil.copytree(DATA / name, folder)
    manifest = json.loads((folder / "experiment.json").read_text())
    (folder / "experiment.json").write_text(json.dumps({**manifest, "recipe": f"{RECIPE}:older"}))
    return folder


def run(words: list[str], capsys: pytest.CaptureFixture[str], about: object) -> int:
    """The exit code of a command, which says one line where it is the user's mistake."""
    try:
        code = main.main(words)
    except BaseException as error:
        raise AssertionError(f"{words}: {about}") from error
    _, err = capsys.readouterr()
    assert code in CODES, (words, about, err)
    assert "Traceback" not in err, (words, about, err)
    if code == main.USER:
        assert err.count("\n") == 1, (words, about, err)
        assert err.startswith("autotune: ")
    return code


def damage_studies(cases: int, place: Path, capsys: pytest.CaptureFixture[str]) -> int:
    random, refused = Random(SEED), 0
    for case in range(cases):
        how = fuzz.damage(study(place, random.choice(STUDIES)), random)
        command = COMMANDS[case % len(COMMANDS)]
        refused += run(command.split(), capsys, (SEED, case, how)) == main.USER
    return refused


def damage_exports(cases: int, place: Path, capsys: pytest.CaptureFixture[str]) -> int:
    random, refused = Random(SEED), 0
    study(place, "searched")
    assert main.main(["export", "s", "--to", "whole", "--trial", "0"]) == main.DONE
    capsys.readouterr()
    for case in range(cases):
        shutil.rmtree(place / "out", ignore_errors=True)
        shutil.copytree(place / "whole", place / "out")
        how = fuzz.damage_file(place / "out" / random.choice(["trial.json", "config.json"]), random)
        command = f"replay out --out replayed-{case}"
        refused += run(command.split(), capsys, (SEED, case, how)) == main.USER
    return refused


def any_words(random: Random) -> list[str]:
    """A command with arguments of any kind."""
    command = random.choice([name for name in main.COMMANDS if name != "doctor"])
    words = [command]
    for name, settings in main.COMMANDS[command][2]:
        if not name.startswith("-"):
            words.append(RIGHT[name] if random.random() < 0.75 else random.choice(WORDS))
        elif random.random() < 0.15:
            flag = settings.get("action") in ("store_true", "store_const")
            words.append(name if flag else f"{name}={random.choice(WORDS)}")
    return words


def type_anything(cases: int, place: Path, capsys: pytest.CaptureFixture[str]) -> int:
    random, refused = Random(SEED), 0
    study(place, "searched")
    assert main.main(["export", "s", "--to", "whole", "--trial", "0"]) == main.DONE
    capsys.readouterr()
    shutil.copy(RECIPE, place / "r.py")
    (place / "folder").mkdir()
    (place / "bytes").write_bytes(b"\x89PNG\xff\0")
    (place / "empty").touch()
    kept = {*os.listdir(place)}
    for case in range(cases):
        words = any_words(random)
        refused += run(words, capsys, (SEED, case)) == main.USER
        for made in {*os.listdir(place)} - kept:
            shutil.rmtree(made) if Path(made).is_dir() else Path(made).unlink()
    return refused


def test_any_arguments(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert type_anything(100, alone, capsys) > 30


def test_damaged_studies(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert damage_studies(42, alone, capsys) > 5


def test_damaged_exports(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert damage_exports(30, alone, capsys) > 5


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("tried", [type_anything, damage_studies, damage_exports])
def test_many_of_them(
    tried: Callable[[int, Path, pytest.CaptureFixture[str]], int],
    alone: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = int(os.environ.get("FUZZ_CASES", "3000"))
    assert tried(cases, alone, capsys) > cases // 10
