"""Commands of autotune on a machine with a GPU, and what they write."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from autotune.evaluation.export.export import export
from autotune.study.manifest import Manifest, manifest_scaling
from autotune.study.result import StudyResult
from autotune.trial import Target, Trial
from autotune.trial.scaling import Scaling
from gpu_stages.correctness import images
from gpu_stages.findings import Finding, Run, checked, not_run

ROOT = Path(__file__).parents[2]
NEEDS = ("ray", "optuna", "mlflow")
SCALINGS = (
    ("without GPUs", Scaling(gpus_per_worker=0)),
    ("with a GPU", Scaling(gpus_per_worker=1)),
    ("of two ranks that share a GPU", Scaling(num_workers=2, gpus_per_worker=0.5)),
)


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


def exported(run: Run) -> Iterator[Finding]:
    """`train.py` of an export trains on as many GPUs as the trial had, though there are more."""
    for number, (label, scaling) in enumerate(SCALINGS):
        done = _trained(run, _exported(run, scaling, f"export-{number}"), scaling.num_workers)
        seen, ranks = _last_metrics(done.stdout), scaling.num_workers
        on_gpus = ranks if run.on_gpu and scaling.gpus else 0
        expected = {"ranks": ranks, "gpus_seen": on_gpus, "ranks_on_gpus": on_gpus}
        fine = done.returncode == 0 and seen.items() >= expected.items()
        text = ", ".join(f"{name} {seen.get(name)}" for name in expected)
        text += "" if fine else f", exit code {done.returncode}\n{done.stderr[-1000:]}"
        yield checked(f"train.py of a trial {label}", fine, text)


def _exported(run: Run, scaling: Scaling, name: str) -> Path:
    """The export of a trial with this scaling, which reaches its target at its first milestone."""
    config = images(run, trainer="placed")
    config["milestone"] = 2 * config["batch_size"]
    target = Target("val_accuracy", 0.0, limit=600)
    manifest = Manifest(
        name="gpu",
        study_id="gpu",
        target=target,
        train="gpu_stages.toys.by_name",
        scaling=manifest_scaling(scaling.decided),
    )
    trial, folder = Trial(0, config, seed=1), run.folder / name
    export(StudyResult(run.folder, target, (trial,)), trial, folder, manifest)
    return folder


def _trained(run: Run, folder: Path, ranks: int) -> subprocess.CompletedProcess[str]:
    """Run an export's `train.py`, by torchrun if it has several ranks."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *(torchrun if ranks > 1 else []), str(folder / "train.py")]
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        timeout=max(run.left, 1),
        check=False,
    )


def _last_metrics(printed: str) -> dict[str, float]:
    """The metrics of the last milestone in what `train.py` printed."""
    lines = [line for line in printed.splitlines() if line.startswith("step ")]
    found = re.findall(r"(\w+)=(\S+)", lines[-1]) if lines else []
    return {name: float(value) for name, value in found}
