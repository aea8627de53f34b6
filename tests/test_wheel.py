"""The wheel: what it holds, and a study run from outside the repository with it installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from counting import mlflow_runs

ROOT = Path(__file__).parents[1]
PACKAGES = ("autotune", "dashboards", "search_spaces", "trainers")
SECONDS = 900.0  # a guard against hangs
TRIALS = 2
SOON = """
from dataclasses import replace

from autotune import Target
from search_spaces.digits import sgd


def soon():
    return replace(sgd(), target=Target("val_accuracy", 0.5, limit=900))
"""
"""A recipe of the package, two ranks on Ray, with a target that takes an epoch or two."""


def run(arguments: list[str], folder: Path) -> str:
    """What a program prints, which sees nothing of the repository but what is installed."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        arguments, cwd=folder, env=clean, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    run([*build, str(ROOT)], folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def outside(wheel: Path) -> Path:
    """A folder with an environment that has the wheel, and sees all packages of this one.

    Only this project's own editable install is left out, which would hide what is missing.
    """
    folder = wheel.parent
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    sites = Path(run([str(python), "-c", "import site; print(*site.getsitepackages())"], folder))
    own = Path(str(sites).strip())
    seen = own / "seen"
    seen.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.search("autotune|time_to_target", entry.name):
            (seen / entry.name).symlink_to(entry)
    (own / "seen.pth").write_text(f"{seen}\n")
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    run([str(python), *install], folder)
    return folder


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    tracked = run(["git", "-C", str(ROOT), "ls-files", *PACKAGES], wheel.parent).split()
    assert names == set(tracked)


@pytest.mark.slow
def test_a_study_from_outside_the_repository(
    outside: Path, with_store: Callable[[Path], Path]
) -> None:
    (outside / "soon.py").write_text(SOON)
    study = with_store(outside / "study")
    command = [str(outside / "env" / "bin" / "autotune"), "run", "soon.py:soon"]
    asked = ["--trials", str(TRIALS), "--racing", "0", "--json", "--out", "study"]
    result = json.loads(run([*command, *asked], outside))
    assert len(result["trials"]) == TRIALS
    assert {trial["state"] for trial in result["trials"]} <= {"REACHED", "CENSORED"}
    assert result["baseline"]["best_val_accuracy"] >= 0.5
    for name in ("journal.jsonl", "experiment.json"):
        assert (study / name).is_file()
    end = time.monotonic() + SECONDS  # the view may still be behind
    while mlflow_runs(study) < 1 + TRIALS:  # the study's run and the trials'
        assert time.monotonic() < end, (study / "mlflow.log").read_text()
        time.sleep(0.3)
