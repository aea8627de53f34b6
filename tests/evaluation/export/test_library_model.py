"""A study that searches the model, one of which is a library's: its export trains alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import autotune as at
from autotune.cli import main

RECIPE = """
import autotune as at
from trainers.language import train

FIXED = {
    "text": "synthetic", "layers": 1, "width": 16, "heads": 2, "sequence_length": 16,
    "train_size": 2048, "val_size": 256, "batch_size": 8, "optimizer": "adamw",
    "milestone": 512, "max_epochs": 1,
}

def recipe():
    space = at.SearchSpace({
        **{key: at.Fixed(value) for key, value in FIXED.items()},
        "model": at.Choice(["gpt", "transformers:gpt2"]),
        "lr": at.Float(1e-3, 1e-2, log=True),
    })
    given = [{"model": name, "lr": 3e-3} for name in ("gpt", "transformers:gpt2")]
    target = at.Target("val_loss", mode="min", limit=600)
    return at.Experiment(
        "models", train, space, target, baseline=given[0], configs=given[1:],
        failure=at.FailurePolicy(keep_checkpoints=2),
    )
"""


@pytest.mark.slow
def test_the_export_of_a_librarys_model_gives_the_losses_of_the_journal(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "recipe.py").write_text(RECIPE)
    folder, out = tmp_path / "s", tmp_path / "out"
    where = ["--out", str(folder), "--tracking-uri", "off", "--backend", "local"]
    run = ["run", f"{tmp_path / 'recipe.py'}:recipe", "--trials", "2", "--experience", "off"]
    assert main.main([*run, *where]) in (0, 3)
    trial = at.load_study(folder).trials[1]
    assert trial.config["model"] == "transformers:gpt2"
    assert len(trial.reports) > 3, trial
    assert main.main(["export", str(folder), "--trial", "1", "--to", str(out)]) == main.DONE
    assert (out / "checkpoint" / "rank-0.pt").is_file()
    done = subprocess.run(
        [sys.executable, str(out / "train.py")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    found = {int(s): float(v) for s, v in re.findall(r"step (\d+) .*val_loss=(\S+)", done.stdout)}
    wanted = {r.step: r.metrics["val_loss"] for r in trial.reports if "val_loss" in r.metrics}
    assert found == pytest.approx(wanted, rel=1e-5)
