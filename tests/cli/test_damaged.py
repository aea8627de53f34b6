"""Commands on study folders and exports that are damaged: one line each, and never a traceback.

`make soak` tries more of them; `DAMAGE_SEED` and `DAMAGE_CASES` choose others.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from damage import damaged

from autotune.cli import main
from autotune.errors import StudyError
from autotune.study import factory
from autotune.tracking import mirror

DATA = Path(__file__).parents[1] / "storage" / "data"
RECIPE = Path(__file__).parents[1] / "support" / "toy_recipes.py"
STUDIES = sorted(p.name for p in DATA.iterdir() if p.is_dir())
SEED = int(os.environ.get("DAMAGE_SEED", "18"))
CODES = (main.DONE, 3, main.USER, main.BROKEN)
COMMANDS = (
    *("status s", "status s --json", "best s", "best s --json", "export s --to out --trial 0"),
    *("export s --to out", "export s --optuna sqlite:///o.db", "compare s --json", "compare s#0 s"),
    *("resume s", "confirm s --repeats 1", "ui s", "report s"),
)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, without Ray and MLflow: what is damaged is seen before they start."""

    def no_ray(*_: Any) -> None:
        raise StudyError("no Ray in this test")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(factory, "ray_pool", no_ray)
    monkeypatch.setattr(mirror, "catch_up", lambda *_: None)
    monkeypatch.setattr(mirror, "ui_command", no_ray)
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


def run(command: str, capsys: pytest.CaptureFixture[str], about: object) -> int:
    """The exit code of a command, which says one line where it is the user's mistake."""
    try:
        code = main.main(command.split())
    except BaseException as error:
        raise AssertionError(f"{command}: {about}") from error
    _, err = capsys.readouterr()
    assert code in CODES, (command, about, err)
    assert "Traceback" not in err, (command, about, err)
    if code == main.USER:
        assert err.count("\n") == 1, (command, about, err)
        assert err.startswith("autotune: ")
    return code


def damage_studies(cases: int, place: Path, capsys: pytest.CaptureFixture[str]) -> int:
    rng, refused = random.Random(SEED), 0
    for case in range(cases):
        name, file = rng.choice(STUDIES), rng.choice(["experiment.json", "journal.jsonl"])
        path = study(place, name) / file
        path.write_bytes(damaged(rng, path.read_bytes(), by_line=file.endswith("l")))
        command = COMMANDS[case % len(COMMANDS)]
        refused += run(command, capsys, (SEED, case, name, file)) == main.USER
    return refused


def damage_exports(cases: int, place: Path, capsys: pytest.CaptureFixture[str]) -> int:
    rng, refused = random.Random(SEED), 0
    study(place, "searched")
    assert main.main(["export", "s", "--to", "whole", "--trial", "0"]) == main.DONE
    capsys.readouterr()
    for case in range(cases):
        shutil.rmtree(place / "out", ignore_errors=True)
        shutil.copytree(place / "whole", place / "out")
        path = place / "out" / rng.choice(["trial.json", "config.json"])
        path.write_bytes(damaged(rng, path.read_bytes(), by_line=False))
        command = f"replay out --out replayed-{case}"
        refused += run(command, capsys, (SEED, case, path.name)) == main.USER
    return refused


def test_damaged_studies(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert damage_studies(52, alone, capsys) > 10


def test_damaged_exports(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert damage_exports(30, alone, capsys) > 5


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_damaged_folders(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = int(os.environ.get("DAMAGE_CASES", "2000"))
    assert damage_studies(cases, alone, capsys) > cases // 10
    assert damage_exports(cases // 4, alone, capsys) > cases // 40
