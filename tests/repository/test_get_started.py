"""`docs/get-started.md`, and what `docs/how-to/results.md` does with its study, block by block."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from counting import mlflow_runs
from documents import ROOT, Block, blocks

SECONDS = 1200.0  # a guard against hangs
SHORTER = {
    "docs/get-started.md": {
        'name="svc"': 'name="svc", tracking_uri="off", max_concurrent_trials=1',
        'out="studies/digits"': 'out="studies/digits", tracking_uri="off"',
        "autotune resume": "autotune resume --tracking-uri off --max-concurrent-trials 1",
    },
    "docs/how-to/results.md": {
        "autotune confirm": "autotune confirm --tracking-uri off",
        "autotune replay": "autotune replay --tracking-uri off",
    },
}
"""One study has its view in MLflow as it begins, and two trials at once: both take seconds."""
MADE = {
    "docs/get-started.md": ("svc", "--trials 14", "digits.html", "fastest"),
    "docs/how-to/results.md": ("table.csv", "best-of-digits", "digits.db"),
}
"""What the tests look for when all has run."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, with_store: Callable[[Path], Path]) -> Path:
    """A folder without a study, and in it `autotune` and `python` as an installation has them."""
    home = tmp_path_factory.mktemp("reader")
    with_store(home / "studies" / "digits")
    programs = home / "bin"
    programs.mkdir()
    for name, arguments in (("python", ""), ("autotune", "-m autotune ")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n')
        program.chmod(0o755)
    return home


def shell(script: str, folder: Path) -> str:
    """What a script prints in the reader's folder."""
    paths = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    paths["OMP_NUM_THREADS"] = "1"  # of so small a model more threads would only wait
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def shortened(page: str) -> list[Block]:
    """All blocks of a page that are run."""
    found = [b for b in blocks(page, "python", "sh") if b.language == "python" or b.is_run]
    for here, shorter in SHORTER[page].items():
        assert any(here in block.text for block in found), here
        found = [replace(block, text=block.text.replace(here, shorter)) for block in found]
    return found


def followed(page: str, folder: Path) -> str:
    """What these blocks print."""
    printed = ""
    for number, block in enumerate(shortened(page)):
        if block.language == "sh":
            printed += shell(block.text, folder)
        else:
            name = block.file or f"block{number}.py"
            (folder / name).write_text(block.text)  # each block is a whole program
            printed += "" if block.file else shell(f"python {name}", folder)
    return printed


@pytest.mark.parametrize("page", [*SHORTER])
def test_what_the_slow_tests_shorten_and_look_for_is_there(page: str) -> None:
    found = shortened(page)
    for block in found:
        if block.language == "python":
            compile(block.text, page, "exec")
    every = "\n".join(block.text for block in found)
    assert all(name in every for name in MADE[page])


@pytest.mark.slow
def test_a_reader_gets_from_a_trainer_to_a_confirmed_result(folder: Path) -> None:
    printed = followed("docs/get-started.md", folder)
    assert (folder / "studies" / "svc" / "journal.jsonl").is_file()
    assert "run again on fresh seeds" in printed
    manifest = json.loads((folder / "studies" / "digits" / "experiment.json").read_text())
    assert manifest["trials"] == 14
    assert mlflow_runs(folder / "studies" / "digits") > 1
    assert (folder / "digits.html").is_file()
    assert (folder / "fastest" / "train.py").is_file()


@pytest.mark.slow
def test_the_study_is_confirmed_compared_and_exported(folder: Path) -> None:
    if not (folder / "studies" / "digits" / "journal.jsonl").is_file():
        pytest.skip("the study is that of the test before")
    followed("docs/how-to/results.md", folder)
    assert (folder / "table.csv").read_text().count("\n") >= 3
    assert (folder / "best-of-digits" / "config.json").is_file()
    assert (folder / "digits.db").is_file()
