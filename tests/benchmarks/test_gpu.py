"""`make gpu` without a GPU: what it says, its deadlines and exit codes, and its stages on a CPU."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.append(str(BENCHMARKS))

import gpu  # noqa: E402
from gpu_stages import correctness, listed, machine, optimizers, speed  # noqa: E402
from gpu_stages.findings import Run  # noqa: E402
from gpu_stages.listed import STAGES, Stage, chosen  # noqa: E402

from trainers.optimizers import NAMES  # noqa: E402

SCRIPT = str(BENCHMARKS / "gpu.py")
ON_CPU = ["--device", "cpu", "--tiny"]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")

WITHOUT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "optuna", "mlflow", "cmaes", "plotly"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run(*arguments: str, timeout: float = 900, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        check=False,
    )


@NO_GPU
def test_without_a_gpu_it_says_so() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (0, "no GPU\n"), done.stderr


@pytest.mark.parametrize(("driver", "code", "says"), [(False, 0, "no GPU"), (True, 2, "no torch")])
def test_without_torch(
    driver: bool,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(gpu.shutil, "which", lambda name: "/usr/bin/nvidia-smi" if driver else None)
    assert gpu.main([]) == code
    said = capsys.readouterr()
    assert says in said.out + said.err


def test_an_unknown_stage_is_one_line() -> None:
    done = run("--stages", "targets")
    assert done.returncode == 2
    assert done.stderr.startswith("unknown stage 'targets'; allowed: machine, optimizers, ")


def test_every_stage_is_there() -> None:
    assert [stage.name for stage in chosen([])] == [stage.name for stage in STAGES]
    for stage in STAGES:
        assert stage.load().__doc__
        assert 0 < stage.least < stage.limit


def test_stages_need_neither_ray_nor_optuna_nor_mlflow(tmp_path: Path) -> None:
    """Trainers, ranks and whatever else the stages import."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    code = "import gpu\nfor s in gpu.STAGES: s.load()\nprint('all loaded')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=BENCHMARKS,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{BENCHMARKS}"},
        check=False,
    )
    assert done.stdout == "all loaded\n", done.stderr


@pytest.mark.slow
def test_a_rank_trains_without_them(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    blocked = run(*ON_CPU, "--stages", "clock", "pool", PYTHONPATH=str(tmp_path))
    assert blocked.returncode == 0, blocked.stdout + blocked.stderr
    assert "not run   the Ray pool: Ray is not installed" in blocked.stdout
    assert "right     the clock of train" in blocked.stdout


STAND_IN = """
import importlib.util, sys, time
sys.path.insert(0, {benchmarks!r})
spec = importlib.util.spec_from_file_location("gpu_script", {script!r})
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
from gpu_stages import listed
from gpu_stages.findings import Finding, checked, measured

def load(stage):
    def found(run):
        yield measured("first", 1.0)
        if stage.name == "wrong":
            yield checked("second", False)
        elif stage.name == "missed":
            yield Finding("second", "missed", 0.5, aim="at least 0.97")
        elif stage.name == "raises":
            raise RuntimeError("no such kernel")
        elif stage.name == "hangs":
            time.sleep(600)

    return found

listed.Stage.load = load
listed.STAGES = (listed.Stage({name!r}, {module!r}, "", 1, 1),)
sys.exit(script.main())
"""
"""The script with one stage of its own, as its processes run it."""


@pytest.mark.parametrize(
    ("name", "module", "limit", "seconds", "code", "line"),
    [
        ("fine", "ranks", 100, 100, 0, "measured  first: 1"),
        ("wrong", "ranks", 100, 100, 1, "wrong     second"),
        ("missed", "ranks", 100, 100, 0, "missed    second: 0.5, aim: at least 0.97"),
        ("raises", "ranks", 100, 100, 1, "RuntimeError: no such kernel"),
        ("hangs", "ranks", 0.3, 100, 0, "missed    hangs: not done by its deadline of 3 s"),
        ("hangs", "groups", 0.3, 100, 1, "wrong     hangs: not done by its deadline of 3 s"),
        ("hangs", "groups", 100, 5, 0, "not run   hangs, the rest: no time beyond 3 s"),
        ("late", "groups", 100, 2.5, 0, "not run   late: no time: "),
    ],
)
def test_verdicts_and_exit_codes(
    name: str,
    module: str,
    limit: float,
    seconds: float,
    code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = STAND_IN.format(benchmarks=str(BENCHMARKS), script=SCRIPT, name=name, module=module)
    (tmp_path / "gpu.py").write_text(made)
    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "gpu.py"))
    options = argparse.Namespace(
        device="cpu", tiny=True, seconds=seconds, json=tmp_path / "answer.json", stages=[]
    )
    assert gpu._run([Stage(name, module, "", limit, 1.0)], options) == code
    assert line in capsys.readouterr().out
    written = json.loads((tmp_path / "answer.json").read_text())
    assert written["stages"][0]["findings"]
    assert written["machine"]["torch"] == version("torch")


def tiny(tmp_path: Path) -> Run:
    return Run("cpu", tiny=True, folder=tmp_path)


@pytest.mark.parametrize(
    "stage",
    [optimizers.against_float64, optimizers.scaled_gradients, correctness.precisions],
)
def test_results_are_right_on_a_cpu(stage: Any, tmp_path: Path) -> None:
    assert optimizers.LR.keys() == speed.WORDS.keys() == {*NAMES}, "all optimizers"
    found = list(stage(tiny(tmp_path)))
    assert found
    assert [str(f) for f in found if f.verdict == "wrong"] == []


def test_a_wrong_optimizer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is sharp: a momentum that differs in float32 alone is seen."""
    made = optimizers.make_optimizer

    def differs(name: str, model: Any, **settings: Any) -> Any:
        single = next(model.parameters()).dtype == torch.float32
        return made(name, model, **settings, momentum=0.9001 if single else 0.9)

    monkeypatch.setattr(optimizers, "make_optimizer", differs)
    monkeypatch.setattr(optimizers, "LR", {"lars": optimizers.LR["lars"]})
    found = list(optimizers.against_float64(tiny(tmp_path)))
    assert [f.verdict for f in found] == ["wrong"] * 5, [str(f) for f in found]


TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\t0-31,64-95\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t

Legend:

  X    = Self
"""


@pytest.mark.parametrize(
    ("table", "near"),
    [
        (TOPOLOGY, ["0-31,64-95", "32-63"]),
        ("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tN/A\tN/A\n", []),
        ("\tGPU0\nGPU0\t X \n", []),
        ("", []),
    ],
)
def test_cores_near_gpus_by_the_driver(table: str, near: list[str]) -> None:
    assert machine.near_by_table(table) == near


@pytest.mark.parametrize(
    ("kind", "error", "wrong"),
    [
        ("product", 2e-6, {"tf32"}),
        ("product", 1e-5, {"fp32"}),
        ("convolution", 1e-5, set()),
        ("convolution", 1e-4, {"fp32"}),
    ],
)
def test_a_convolution_may_be_more_exact_than_its_precision(
    kind: str, error: float, wrong: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its algorithm is cuDNN's choice; a product in tf32 that is exact was not made in tf32."""
    monkeypatch.setattr(correctness, "precisions_of", lambda run: ("fp32", "tf32"))
    monkeypatch.setattr(correctness, "_errors", lambda run, name: {kind: error})
    found = correctness.precisions(tiny(tmp_path))
    assert {f.name for f in found if f.verdict == "wrong"} == {f"{kind} in {x}" for x in wrong}


BRIEF = "microbatch"  # the soak runs the other stages; three of them are run above, in this process


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(stage.name, marks=[] if stage.name == BRIEF else [pytest.mark.soak])
        for stage in listed.STAGES
    ],
)
def test_every_stage_runs_on_a_cpu(name: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    done = run(*ON_CPU, "--seconds", "1500", "--json", str(answer), "--stages", name, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    (stage,) = json.loads(answer.read_text())["stages"]
    verdicts = [finding["verdict"] for finding in stage["findings"]]
    assert verdicts
    assert not {"wrong", "missed"} & {*verdicts}
    assert {"right", "measured"} & {*verdicts}, done.stdout
