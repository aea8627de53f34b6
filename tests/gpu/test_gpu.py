"""Every stage of `make gpu` on this machine's GPU; skipped without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from gpu_stages.listed import STAGES  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`make gpu` with the GPUs that `conftest.py` hides from the other tests."""
    environment = dict(os.environ)
    hidden = environment.pop("AUTOTUNE_TEST_GPUS", None)
    if hidden == "all":
        del environment["CUDA_VISIBLE_DEVICES"]
    elif hidden is not None:
        environment["CUDA_VISIBLE_DEVICES"] = hidden
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    if run("--seconds", 0).stdout == "no GPU\n":
        pytest.skip("no GPU")


@pytest.mark.parametrize("stage", [stage.name for stage in STAGES])
def test_nothing_is_wrong(stage: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    done = run("--stages", stage, "--json", answer)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(answer.read_text())["stages"][0]["findings"]
