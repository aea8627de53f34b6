"""Every stage of `make gpu` on this machine's GPU; skipped without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from gpu_stages.listed import STAGES  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.mark.parametrize("stage", [stage.name for stage in STAGES])
def test_nothing_is_wrong(stage: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", "--stages", stage, "--json", answer]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(answer.read_text())["stages"][0]["findings"]
