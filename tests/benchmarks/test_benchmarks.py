"""Each benchmark runs and writes what it says; the figures of a smoke run mean nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = {
    "first_hour.py": "runs",
    "trial_cost.py": "runs",
    "trial_start.py": "runs",
    "backends.py": "runs",
    "training_loop.py": "runs",
    "demo.py": "studies",
    "schedules.py": "runs",
    "controller_cost.py": "runs",
    "driver.py": "virtual",
    "mlflow_ui.py": "runs",
    "decisions.py": "runs",
    "memory_prediction.py": "runs",
    "checkpoints.py": "runs",
    "validation.py": "runs",
    "recovery.py": "runs",
    "slow_link.py": "runs",
    "communication.py": "runs",
    "clicks.py": "runs",
    "classes.py": "runs",
    "smaller_models.py": "runs",
    "busy_machine.py": "runs",
    "ray_tune.py": "pairs",
    "two_stages.py": "runs",
    "shared_beginnings.py": "runs",
    "scale_prediction.py": "repeats",
}
RESEARCH = {
    "controllers.py": (),
    "controller_start.py": (),
    "farm.py": (),
    "fused_trials.py": (),
    "infeasible.py": ("--problem", "square", "--samplers", "tpe"),
    "plan_speeds.py": ("--out", "speeds.json"),
    "population.py": (),
    "product_surrogate.py": (),
    "racing.py": (),
    "racing.py --misses": ("--misses", "--epochs"),
    "schedule_search.py": (),
    "scorings.py": ("--rows", "equal seconds"),
    "search.py": ("--methods", "the default;Optuna TPE + Hyperband"),
}
"""Smallest runs of research scripts, by script (and mode): their arguments."""
LONG = (
    "backends.py",
    "busy_machine.py",
    "checkpoints.py",
    "communication.py",
    "demo.py",
    "driver.py",
    "farm.py",
    "first_hour.py",
    "mlflow_ui.py",
    "population.py",
    "ray_tune.py",
    "recovery.py",
    "scale_prediction.py",
    "schedule_search.py",
    "schedules.py",
    "slow_link.py",
    "training_loop.py",
    "trial_cost.py",
    "trial_start.py",
    "two_stages.py",
    "validation.py",
)
"""Those whose smallest run takes half a minute or more."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "script",
    [pytest.param(s, marks=[pytest.mark.soak] if s in LONG else []) for s in SCRIPTS],
)
def test_smoke_run(script: str, tmp_path: Path) -> None:
    assert run_quick(FOLDER / script, (), tmp_path)[SCRIPTS[script]]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "script",
    [pytest.param(s, marks=[pytest.mark.soak] if s in LONG else []) for s in RESEARCH],
)
def test_research_smoke_run(script: str, tmp_path: Path) -> None:
    written = run_quick(FOLDER / "research" / script.split()[0], RESEARCH[script], tmp_path)
    assert written.get("runs") or written["studies"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_stages_on_the_farm(tmp_path: Path) -> None:
    options = ("--problem", "farm", "--sides", "one", "two", "random", "ceiling")
    rows = run_quick(FOLDER / "two_stages.py", options, tmp_path)["runs"]
    assert [row["side"] for row in rows] == list(options[3:])
    probes = {row["side"]: row["probes"] for row in rows}
    assert probes["one"] == probes["ceiling"] == 0
    assert min(probes["two"], probes["random"]) >= 3
    assert all(row["trials"] > 1 for row in rows)


@pytest.mark.slow
def test_suggestions_of_the_driver(tmp_path: Path) -> None:
    written = run_quick(FOLDER / "driver.py", ("--parts", "suggest"), tmp_path)
    assert all(row["next"] > 0 for row in written["suggest"])


@pytest.mark.slow
def test_baselines_of_optimizers(tmp_path: Path) -> None:
    """A learning rate that reaches the target, and one that is too small."""
    (tmp_path / "easier.py").write_text(
        "from dataclasses import replace\n"
        "from autotune import Target\n"
        "from search_spaces import digits\n"
        "def easier():\n"
        "    return replace(digits.adamw(), target=Target('val_accuracy', 0.9, limit=60.0))\n"
    )
    command = [sys.executable, FOLDER / "optimizer_baselines.py", "easier.py:easier", "--json"]
    options = ["--vary", "horizon=8", "--vary", "lr.peak=0.01,0.0003", "--seeds", "2"]
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    usual, small = json.loads(done.stdout)["rows"]
    assert usual["settings"] == {"horizon": 8, "lr.peak": 0.01}
    assert [run["seed"] for run in usual["runs"]] == [1, 2]
    assert all(run["reached"] and run["epochs"] < 8 for run in usual["runs"])
    assert not any(run["reached"] or run["epochs"] < 8 for run in small["runs"])


def run_quick(script: Path, options: Sequence[str], folder: Path) -> dict[str, Any]:
    """The JSON that the smallest run of the script writes."""
    answer = folder / "answer.json"
    command = [sys.executable, script, "--quick", "--json", answer, *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    written: dict[str, Any] = json.loads(answer.read_text())
    assert written["machine"]["cpu"]
    return written


def test_cpu_of_ended_children_is_counted(script: Callable[[str], Any]) -> None:
    meters = script("_cpu_meter")
    burn = "import time\nwhile time.process_time() < 0.8: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent])
    meter = meters.CpuMeter(process.pid, name="no such text")
    family = {process.pid}
    while process.poll() is None:
        meter.sample(family)
        meter._over.wait(0.02)
    assert 0.6 < sum(meter.seconds.values()) < 2


def test_a_process_is_known_by_its_name_also_after_exec(script: Callable[[str], Any]) -> None:
    meters = script("_cpu_meter")
    late = "import os, time; time.sleep(0.3); os.execvp('sleep', ['the-' 'name', '0.3'])"
    process = subprocess.Popen([sys.executable, "-c", late])
    meter = meters.CpuMeter(process.pid, name="the-name")
    while process.poll() is None:
        meter.sample({process.pid})
        meter._over.wait(0.02)
    assert len(meter.named) == 1


def test_turns_go_there_and_back(script: Callable[[str], Any]) -> None:
    assert list(script("_common").in_turns("ab", 2)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


@pytest.mark.parametrize(
    ("mbit", "user", "program", "says"),
    [
        ("100", 1000, "/sbin/ip", "needs root, to make network namespaces"),
        ("100", 0, None, "needs the program ip (iproute2)"),
        ("0", 0, "/sbin/ip", "mbit must be a finite number more than 0, got 0.0"),
    ],
    ids=["root", "iproute2", "a speed"],
)
@pytest.mark.parametrize("name", ["classes", "clicks"])
def test_without_what_a_cable_needs_a_run_on_one_ends_with_one_line(
    name: str,
    mbit: str,
    user: int,
    program: str | None,
    says: str,
    script: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", lambda _: program)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--mbit", mbit])
    with pytest.raises(SystemExit) as ended:
        script(name).main()
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"{name}.py: --mbit {mbit}: {says}\n")


def test_the_trainer_takes_every_technique_and_what_the_search_over_them_draws(
    script: Callable[[str], Any],
) -> None:
    from autotune.storage.codec import decode_entries, encode
    from trainers import language

    communication, link_study = script("communication"), script("_link_study")
    fixed = {**communication.GPT.fixed, "text": "synthetic"}
    for configs in communication.with_rates(communication.TECHNIQUES, False).values():
        for config in json.loads(json.dumps(encode(configs))):
            language.read_settings(decode_entries({**fixed, **config}))
    made = link_study.experiment(communication.GPT, everything=True)
    made.space.complete(made.baseline)
    drawn = [made.space.config(point) for point in made.space.sample(300)]
    allowed = [config for config in drawn if not made.space.broken(config)]
    for config in allowed:
        language.read_settings({**config, "text": "synthetic"})
    used = {(config["optimizer"], config.get("gradient_compression")) for config in allowed}
    assert {("sgd", "dgc"), ("adamw", "one_bit"), ("lamb", "one_bit")} <= used
    assert len(allowed) < len(drawn)


@pytest.mark.parametrize("mbit", ["0", "-1", "inf", "nan"])
def test_a_cable_has_a_speed(
    mbit: str,
    script: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["communication.py", "--mbit", "10", mbit])
    with pytest.raises(SystemExit) as ended:
        script("communication").main()
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"--mbit must be a finite number above 0 but got {float(mbit):g}")


def test_a_search_in_two_stages_that_probed_nothing_is_a_fault(
    script: Callable[[str], Any],
) -> None:
    faults = script("two_stages").faults
    answer = {"plan": "the default is kept", "probed": {"precision fp16": 1}, "kept": []}
    assert faults("control", [answer]) == []
    nothing = {**answer, "probed": {}}
    assert faults("control", [answer, nothing]) == ["nothing was probed beside the default"]


def test_the_aims_of_two_stages_are_judged(
    script: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    two_stages = script("two_stages")

    def judged(problem: str, best: float, probes: float) -> int:
        runs = {
            "one": [{"best": 10.0, "limit": 30.0, "probe_seconds": 0.0}] * 2,
            "two": [{"best": best, "limit": 30.0, "probe_seconds": probes}] * 2,
        }
        return int(two_stages.exit_code(two_stages.judged_aims(problem, runs, 100.0)))

    assert judged("control", 10.4, 4.9) == 0
    assert judged("control", 10.6, 4.9) == 1
    assert "MISSED: the best over one stage's 1.06 (aim: 1.05)" in capsys.readouterr().out
    assert judged("digits", 10.6, 4.9) == 0
    assert judged("digits", 9.0, 5.1) == 1
    assert "MISSED: probes take 5.1% of the search (aim: below 5%)" in capsys.readouterr().out
