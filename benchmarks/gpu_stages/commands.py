"""Commands of autotune on a machine with a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gpu_stages.findings import Finding, Run, checked, not_run

ROOT = Path(__file__).parents[2]
NEEDS = ("ray", "optuna", "mlflow")


def doctor(run: Run) -> Iterator[Finding]:
    """`doctor` finds nothing wrong; its lines are shown."""
    absent = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if absent:
        yield not_run("doctor", f"{', '.join(absent)} not installed")
        return
    command = [sys.executable, "-m", "autotune", "doctor"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=run.left, check=False
    )
    lines = (done.stdout + done.stderr).strip()
    yield checked("doctor", done.returncode == 0, f"exit code {done.returncode}\n{lines[-2000:]}")
