"""The wheel: what it holds, and a study run from outside the repository with it installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("autotune", "dashboards", "search_spaces", "trainers")
SECONDS = 900.0  # a guard against hangs
TRIALS = 2


def run(arguments: list[str], folder: Path, codes: tuple[int, ...] = (0,)) -> str:
    """What a program prints, which sees nothing of the repository but what is installed."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        arguments, cwd=folder, env=clean, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode in codes, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
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
def test_a_study_from_outside_the_repository(outside: Path) -> None:
    command = [str(outside / "env" / "bin" / "autotune"), "run", "search_spaces.digits:sgd"]
    asked = ["--trials", str(TRIALS), "--racing", "0", "--json", "--out", "study"]
    # 3 is no trial reached the target: on a busy machine the limit of 30 s passes before.
    result = json.loads(run([*command, *asked], outside, codes=(0, 3)))
    assert len(result["trials"]) == TRIALS
    assert {trial["state"] for trial in result["trials"]} <= {"REACHED", "CENSORED"}
    assert result["baseline"]["best_val_accuracy"] > 0.5
    for name in ("journal.jsonl", "experiment.json", "mlflow.db"):
        assert (outside / "study" / name).is_file()
