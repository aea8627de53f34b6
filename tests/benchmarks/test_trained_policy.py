"""`trained_policy.py`: trains, simulates and drives studies of a task that is left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.algorithms.samplers.trained_policy import network

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "research" / "trained_policy.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fold_is_trained_and_judged(data: Path, tmp_path: Path) -> None:
    with np.load(data) as read:
        kept = {name: read[name] for name in read.files}
    kept["val_accuracy"] = np.minimum(kept["val_accuracy"], 60)  # which many reach, soon or late
    np.savez(tmp_path / "lcbench_dev.npz", **kept)

    def run(what: str, *options: str) -> dict[str, Any]:
        answer = tmp_path / f"{what}.json"
        usual = ["--data", ".", "--to", "weights", "--folds", "3", "--seeds", "2"]
        command = [sys.executable, SCRIPT, what, *usual, "--json", answer.name, *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(answer.read_text()) if answer.exists() else {}

    run("train", "--fold", "1", "--studies", "4")
    weights = network.read(tmp_path / "weights" / "ppo-0-1.npz")
    assert weights.keys() == {*network.SHAPES, *network.STOP_SHAPES}
    simulated = run("simulate", "--powers", "1")
    driven = run(
        *("drive", "--trials", "8", "--rows", "random", "policy", "--pruners", "auto", "policy")
    )
    assert simulated.keys() == {"others: random", "others: posterior", "others: policy ^1"}
    pairs = [f"{p}: {row}" for p in ("auto", "policy") for row in ("random", "policy")]
    assert driven.keys() == set(pairs)
    for rows in (simulated, driven):
        for studies in rows.values():
            regrets = np.array(studies)  # of the one task left out, two studies at four spends
            assert regrets.shape == (2, 4)
            assert (np.diff(regrets) <= 1e-9).all()
            assert (regrets >= 1 - 1e-9).all()
        assert max(np.max(studies) for studies in rows.values()) > 1
