"""What the README says is true: its Python runs, its commands exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune import Experiment
from autotune.cli import main

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_first_example_runs(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(BLOCKS[0])
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+\.\d+ \{", done.stdout)
    assert (tmp_path / "studies" / "digits" / "journal.jsonl").is_file()


def test_deriving_a_recipe() -> None:
    names: dict[str, object] = {}
    exec(BLOCKS[1], names)
    derived = names["four_workers"]()  # type: ignore[operator]
    assert isinstance(derived, Experiment)
    assert derived.scaling.num_workers == 4


def test_the_trainer_outline_is_a_generator_function() -> None:
    names: dict[str, object] = {}
    exec(BLOCKS[2], names)
    assert names["train"].__code__.co_flags & 0x20  # type: ignore[attr-defined]


def test_commands_and_flags_exist() -> None:
    lines = re.findall(r"^(?:\.venv/bin/)?autotune (\w+)(.*)$", README, re.MULTILINE)
    assert {name for name, _ in lines} >= {"run", "resume", "status", "best", "ui", "export"}
    for name, rest in lines:
        known = {word for flag in main.COMMANDS[name][2] for word in flag[0].split()}
        given = re.findall(r"--[\w-]+", rest.partition("#")[0])
        assert set(given) <= known, (name, rest)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\[[^\]\"]+\]\(([^)#]+)\)", README):
        if not link.startswith("http"):
            assert (Path(__file__).parents[2] / link).exists(), link


@pytest.mark.slow
def test_a_recipe_of_ones_own_runs(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "examples" / "own_model.py"
    command = ["run", f"{recipe}:recipe", "--trials", "3", "--tracking-uri", "off", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["baseline"]["state"] == "REACHED"
