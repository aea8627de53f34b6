"""`docs/get-started.md`, and what `docs/how-to/results.md` does with its study, block by block."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from counting import mlflow_runs
from documents import ROOT, blocks

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


def followed(page: str, folder: Path) -> str:
    """What all blocks of a page print that are run."""
    printed, every = "", ""
    for number, block in enumerate(blocks(page, "python", "sh")):
        text = block.text
        every += text
        for here, shorter in SHORTER[page].items():
            text = text.replace(here, shorter)
        if block.language == "python":
            name = block.file or f"block{number}.py"
            (folder / name).write_text(text)  # each block is a whole program
            printed += "" if block.file else shell(f"python {name}", folder)
        elif block.is_run:
            printed += shell(text, folder)
    assert all(here in every for here in SHORTER[page])
    return printed


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
