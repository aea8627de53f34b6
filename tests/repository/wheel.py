"""Builds the wheel, installs it into a clean environment, and runs a study from outside.

Run by `make test` after pytest: `python tests/repository/wheel.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRIALS = 3


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="autotune-wheel-") as folder:
        outside = Path(folder)
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder]
        run([*build, str(ROOT)], cwd=outside)
        wheel = next(outside.glob("*.whl"))
        venv.create(outside / "env", with_pip=True)
        python = outside / "env" / "bin" / "python"
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        run([str(python), "-m", "pip", "install", "--quiet", *constraints, str(wheel)], cwd=outside)
        study(python.parent / "autotune", outside)
    print("wheel: installed into a clean environment, ran a study from outside the repository")


def study(command: Path, outside: Path) -> None:
    """Run a few trials of the digits recipe and check what comes out."""
    recipe = ["run", "search_spaces.digits:sgd", "--trials", str(TRIALS), "--racing", "0", "--json"]
    done = run([str(command), *recipe, "--out", "study"], cwd=outside)
    result = json.loads(done)
    if len(result["trials"]) != TRIALS or result["baseline"]["state"] != "REACHED":
        raise SystemExit(f"the installed wheel's study went wrong: {done}")
    for name in ("journal.jsonl", "experiment.json", "mlflow.db"):
        if not (outside / "study" / name).is_file():
            raise SystemExit(f"the installed wheel's study left no {name}")


def run(arguments: list[str], cwd: Path) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        arguments, cwd=cwd, env=clean, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
