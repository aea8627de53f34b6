"""Names, paths and journals that mean harm; secrets and open ports of a study that really runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from counting import mlflow_runs
from sims import METRIC, RATES, lines, racing, simulate, toy_train

import autotune as at
import autotune.trial
from autotune.backends.monitoring import NAMES
from autotune.errors import UserError
from autotune.evaluation.export import export
from autotune.storage.journal import JOURNAL
from autotune.storage.retention import remove

GRAFANA = Path(__file__).parents[2] / "dashboards" / "grafana" / "autotune.json"


# --- names and paths ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../up",
        "a/b",
        "/etc",
        "a\\b",
        "a\0b",
        "a\n",
        "a b",
        "-rf",
        "x" * 101,
        "~",
        "$X",
    ],
)
def test_a_name_that_could_leave_the_folder_is_refused(name: str) -> None:
    target = at.Target(METRIC, 1.0, limit=5)
    with pytest.raises(ValueError, match="Experiment name must be"):
        at.Experiment(name, toy_train, RATES, target)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Checkpoints, and beside them what must stay."""
    for place in ("study/checkpoints/trial-0001/step-10", "victim/step-1"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "rank-0.pt").write_text("precious")
    checkpoints = tmp_path / "study" / "checkpoints"
    (checkpoints / "link").symlink_to(tmp_path / "victim")
    (checkpoints / "trial-0002").mkdir()
    (checkpoints / "trial-0002" / "inner").symlink_to(tmp_path / "victim")
    (checkpoints / "circle").symlink_to(checkpoints / "circle")
    return tmp_path


@pytest.mark.parametrize(
    "path",
    [
        "victim",
        "victim/step-1",
        "study",
        "study/checkpoints",
        "study/checkpoints/.",
        "study/checkpoints/..",
        "study/checkpoints/../../victim",
        "study/checkpoints/link",
        "study/checkpoints/link/step-1",
        "study/checkpoints/circle",
        "study/checkpoints2",
        "study/checkpoints/a\0b",
        "study/checkpoints/" + 40 * ("x" * 200 + "/") + "/../" * 41 + "victim",
    ],
)
def test_nothing_outside_the_checkpoints_is_removed(tree: Path, path: str) -> None:
    (tree / "study" / "checkpoints2").mkdir()
    assert not remove(f"{tree}/{path}", within=tree / "study" / "checkpoints")
    assert (tree / "victim" / "step-1" / "rank-0.pt").read_text() == "precious"
    assert (tree / "study" / "checkpoints2").is_dir()
    assert (tree / "study" / "checkpoints" / "trial-0001" / "step-10" / "rank-0.pt").is_file()


def test_what_lies_inside_is_removed_and_links_in_it_are_not_followed(tree: Path) -> None:
    checkpoints = tree / "study" / "checkpoints"
    for number in (1, 2):
        assert remove(checkpoints / f"trial-000{number}", within=checkpoints)
        assert not (checkpoints / f"trial-000{number}").exists()
    assert (tree / "victim" / "step-1" / "rank-0.pt").read_text() == "precious"


def test_checkpoints_on_another_disk_by_a_link_are_removed(tree: Path) -> None:
    (tree / "study" / "checkpoints").rename(tree / "scratch")
    (tree / "study" / "checkpoints").symlink_to(tree / "scratch")
    checkpoints = tree / "study" / "checkpoints"
    assert remove(checkpoints / "trial-0001", within=checkpoints)
    assert not (tree / "scratch" / "trial-0001").exists()


def test_a_tampered_journal_removes_nothing_of_others(tmp_path: Path) -> None:
    """A resumed driver sweeps the checkpoints of ended trials: those in its own folder only."""
    folder, victim = tmp_path / "study", tmp_path / "victim" / "step-1"
    victim.mkdir(parents=True)
    simulate(racing([2.0, 1.0]), folder, 2)
    rows = lines(folder)
    place = next(i for i, row in enumerate(rows) if row["event"] == "ended" and row["trial"] == 1)
    clock = next(row for row in rows if row["event"] == "reported")["report"]["clock"]
    for path in (str(victim), f"{folder}/checkpoints/../../victim/step-1"):
        checkpoint = {"step": 10, "path": path, "clock": clock}
        saved = {"event": "saved", "trial": 1, "checkpoint": checkpoint, "at": rows[place]["at"]}
        tampered = [*rows[:place], saved, *rows[place:]]
        (folder / JOURNAL).write_text("".join(json.dumps(row) + "\n" for row in tampered))
        simulate(racing([2.0, 1.0]), folder, 3)
        assert victim.is_dir()
        (folder / JOURNAL).write_text("".join(json.dumps(row) + "\n" for row in rows))


OWN = "study/checkpoints/trial-0000/step-10"


@pytest.mark.parametrize(
    "path",
    [
        "{}/victim",
        "file://{}/victim",
        "http://127.0.0.1:9/victim",
        "{}/study/checkpoints/../../victim",
        "../victim",
        "{}/study",
        "{}/study/checkpoints/link",
        "{}/study/checkpoints2",
        f"{{}}/{OWN}",
    ],
)
def test_an_export_takes_only_rank_files_of_the_studys_own_checkpoints(
    tmp_path: Path, path: str
) -> None:
    """A journal of somebody else's may name any folder, and there may be links in its folders."""
    folder, victim = tmp_path / "study", tmp_path / "victim"
    simulate(racing([2.0]), folder, 1)
    for place in (victim, folder / "checkpoints2", tmp_path / OWN):
        place.mkdir(parents=True)
        for name in ("rank-0.pt", "id_rsa"):
            (place / name).write_text(f"{place}")
    (tmp_path / OWN / "rank-1.pt").symlink_to(victim / "id_rsa")
    (folder / "checkpoints" / "link").symlink_to(victim)
    rows = lines(folder)
    clock = next(row for row in rows if row["event"] == "reported")["report"]["clock"]
    checkpoint = {"step": 10, "path": path.format(tmp_path), "clock": clock}
    saved = {"event": "saved", "trial": 0, "checkpoint": checkpoint, "at": 1.0}
    rows = [row for row in rows if row["event"] != "saved"]
    rows.insert(-1, saved)
    (folder / JOURNAL).write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = at.load_study(folder)
    content = export.export(result, result.trials[0], tmp_path / "out")
    copied = {p.name for p in (tmp_path / "out").rglob("*") if p.parent.name == "checkpoint"}
    if path.endswith(OWN):
        assert copied == {"rank-0.pt"}
    else:
        assert copied == set()
        assert "is not in a folder of the study's checkpoints" in content["checkpoint_fault"]


@pytest.mark.parametrize("number", ["../../../tmp/x", 1.5, -1, True, None, [0]])
def test_a_trial_number_that_is_none_is_damage(number: Any, fast_path: Path) -> None:
    simulate(racing([2.0]), fast_path, 1)
    rows = lines(fast_path)
    for row in rows:
        if row["event"] in ("suggested", "started"):
            row["trial"] = number
    (fast_path / JOURNAL).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"line 2 is damaged"):
        simulate(racing([2.0]), fast_path, 2)


# --- a study that really runs ---------------------------------------------------------------------

SECRETS = {
    "MLFLOW_TRACKING_USERNAME": "planted-user-5d1f",
    "MLFLOW_TRACKING_PASSWORD": "planted-password-9c2e",
    "MLFLOW_TRACKING_TOKEN": "planted-token-77aa",
    "AWS_SECRET_ACCESS_KEY": "planted-aws-41b0",
    "RAY_AUTH_TOKEN": "planted-ray-0f3d",
    "WANDB_API_KEY": "planted-other-e6e6",
}


@pytest.fixture(scope="module")
def study(with_store: Callable[[Path], Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A study of its own Ray with secrets around it, and what could be seen while it ran."""
    with tempfile.TemporaryDirectory(prefix="at-") as place:  # short: Ray has sockets there
        root = Path(place)
        with_store(root / "study")
        driver = Path(__file__).parents[1] / "support" / "monitored_study.py"
        process = subprocess.Popen(
            [sys.executable, str(driver), str(root / "study")],
            env={**os.environ, **SECRETS, "RAY_TMPDIR": place, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            seen = _watched(process, root / "study")
            output, _ = process.communicate(timeout=900)
        finally:
            process.kill()
        assert process.returncode == 0, output
        yield root, {**seen, "output": output}


def _watched(process: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """Command lines, open ports and figures, until all that is wanted has been seen."""
    commands: set[str] = set()
    ports: set[tuple[str, str]] = set()
    figures, until = "", time.monotonic() + 900
    while process.poll() is None and time.monotonic() < until:
        for one in _family(process.pid):
            try:
                commands.add(" ".join(one.cmdline()))
                listening = [c for c in one.net_connections("inet") if c.status == "LISTEN"]
                ports |= {(one.name(), c.laddr.ip) for c in listening}
            except psutil.Error:
                continue
        text = _scraped(folder / "prometheus.json")
        if "ray_autotune_best_seconds{" in text and not figures:
            figures = text
            (folder / "enough").touch()
        time.sleep(0.5)
    return {"commands": commands, "ports": ports, "figures": figures}


def _family(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.Error:
        return []


def _scraped(targets: Path) -> str:
    """What Prometheus would read from where the study says."""
    try:
        (group,) = json.loads(targets.read_text())
        (place,) = group["targets"]
        with urllib.request.urlopen(f"http://{place}/metrics", timeout=600) as answer:
            return str(answer.read().decode())
    except (OSError, ValueError):
        return ""


@pytest.mark.slow
def test_no_secret_is_written_down_or_shown(study: tuple[Path, dict[str, Any]]) -> None:
    """In the journal, experiment.json, MLflow's store and artifacts, logs and process lists."""
    root, seen = study
    names = {path.name for path in (root / "study").rglob("*")}
    assert {"journal.jsonl", "experiment.json", "prometheus.json"} <= names
    assert mlflow_runs(root / "study") > 1, "the study's view"
    assert len(seen["commands"]) > 3
    for secret in SECRETS.values():
        assert secret not in seen["output"]
        assert not [line for line in seen["commands"] if secret in line]
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert secret.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_every_port_that_a_study_opens_is_on_loopback(study: tuple[Path, dict[str, Any]]) -> None:
    _, seen = study
    assert {name for name, _ in seen["ports"]} >= {"gcs_server", "raylet"}
    loopback = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert {(name, ip) for name, ip in seen["ports"] if ip not in loopback} == set()


def test_the_dashboard_asks_for_all_figures() -> None:
    panels = json.loads(GRAFANA.read_text())["panels"]
    asked = " ".join(t["expr"] for panel in panels for t in panel.get("targets", []))
    words = set(asked.replace("(", " ").replace("{", " ").replace(")", " ").split())
    assert {word for word in words if word.startswith("ray_")} == {f"ray_{name}" for name in NAMES}


@pytest.mark.slow
def test_a_study_shows_the_figures_that_the_dashboard_asks_for(
    study: tuple[Path, dict[str, Any]],
) -> None:
    _, seen = study
    shown = {line.partition("{")[0] for line in seen["figures"].splitlines() if line[:1] != "#"}
    of_other_targets = {"ray_autotune_best_steps", "ray_autotune_best_metric"}
    assert {f"ray_{name}" for name in NAMES} - of_other_targets <= shown
    by_state = [line for line in seen["figures"].splitlines() if "ray_autotune_trials{" in line]
    assert {word for line in by_state for word in line.split('"') if word in _STATES} == _STATES


_STATES = {str(state).lower() for state in at.trial.State}
