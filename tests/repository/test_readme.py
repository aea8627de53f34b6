"""The front page is short, and its example is a study; a recipe of one's own is one, too."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import ROOT, blocks

SECONDS = 900.0  # a guard against hangs


def test_it_fits_a_hundred_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


PLAIN = ROOT / "examples" / "plain_function.py"


def fewer(text: str, name: str) -> str:
    """The example without MLflow, which the study of `get-started.md` has, in one process."""
    assert text.count(f'name="{name}"') == 1
    more = f'name="{name}", tracking_uri="off", max_concurrent_trials=1'
    return text.replace(f'name="{name}"', more)


def example() -> str:
    (block,) = blocks("README.md", "python")
    return fewer(block.text, "first-digits")


def plain() -> str:
    return fewer(PLAIN.read_text(), "digits-svc")


def tuned(text: str) -> dict[str | None, str]:
    """The keywords of its call of `at.tune`."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    (tune,) = [call for call in calls if ast.unparse(call.func) == "at.tune"]
    return {keyword.arg: ast.unparse(keyword.value) for keyword in tune.keywords}


@pytest.mark.parametrize("text", [example, plain], ids=["readme", "plain"])
def test_the_examples_are_python_with_what_the_tests_add(text: Callable[[], str]) -> None:
    compile(text(), "example", "exec")  # no key is given twice
    assert {"name", "trials", "metric", "tracking_uri"} <= tuned(text()).keys()
    assert "print(result.best_value, result.best_config)" in text()


@pytest.mark.slow
def test_its_example_is_a_study(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(example())
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    asked = tuned(example())
    aim = f"{ast.literal_eval(asked['metric'])} {asked['target']}"
    begins = f"studies/first-digits: {asked['trials']} trials, the best to {aim}: "
    assert done.stdout.startswith(begins)
    assert (tmp_path / "studies" / "first-digits" / "journal.jsonl").is_file()


def test_the_shortest_example_has_twelve_lines_at_most() -> None:
    lines = [line for line in PLAIN.read_text().splitlines() if line.strip()]
    first = next(i for i, line in enumerate(lines) if line.startswith("from "))
    assert "print" in lines[-1]
    assert len(lines[first:]) <= 12


@pytest.mark.slow
def test_the_shortest_example_finds_the_best_of_a_plain_function(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(plain())
    done = subprocess.run(
        [sys.executable, "plain.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    value, config = done.stdout.split(" ", 1)
    assert float(value) > 0.97
    assert {*ast.literal_eval(config)} == {"C", "gamma"}
    assert (tmp_path / "studies" / "digits-svc" / "journal.jsonl").is_file()


@pytest.mark.soak
def test_a_recipe_of_ones_own_runs(tmp_path: Path) -> None:
    recipe = ROOT / "examples" / "own_model.py"
    command = ["run", f"{recipe}:recipe", "--trials", "3", "--tracking-uri", "off", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode in (0, 3), done.stderr  # how soon it trains is the machine's
    result = json.loads(done.stdout)
    assert len(result["trials"]) == 3
    assert result["baseline"]["state"] in ("REACHED", "CENSORED")
