"""A file or folder is there whole or not at all, and nothing else is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.storage import atomic


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    for content in (b"first", "seconde \u00fc"):
        atomic.write(tmp_path / "a.json", content, durable=True)
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == "seconde \u00fc"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_block_that_raises_leaves_what_was_there(tmp_path: Path) -> None:
    def break_off_a_file() -> None:
        with atomic.replacing(tmp_path / "a.json") as file:
            file.write(b"half")
            raise ZeroDivisionError

    def break_off_a_folder() -> None:
        with atomic.making(tmp_path / "folder") as part:
            part.mkdir()
            (part / "one").write_text("1")
            raise ZeroDivisionError

    atomic.write(tmp_path / "a.json", "before")
    for break_off in (break_off_a_file, break_off_a_folder):
        with pytest.raises(ZeroDivisionError):
            break_off()
    assert (tmp_path / "a.json").read_text() == "before"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_takes_the_place_of_an_empty_one_and_of_no_other(tmp_path: Path) -> None:
    for name in ("new", "empty", "full"):
        if name != "new":
            (tmp_path / name).mkdir()
        if name == "full":
            (tmp_path / name / "kept").write_text("1")

    def make(name: str) -> None:
        with atomic.making(tmp_path / name, concurrent=True) as part:
            part.mkdir()
            (part / "made").write_text("1")

    make("new")
    make("empty")
    with pytest.raises(OSError, match="not empty"):
        make("full")
    found = {p.name: os.listdir(p) for p in tmp_path.iterdir()}
    assert found == {"new": ["made"], "empty": ["made"], "full": ["kept"]}


def test_two_processes_that_write_one_file_do_not_mix(tmp_path: Path) -> None:
    """The other process writes its own part of the same name in between."""
    code = (
        "import sys; from pathlib import Path; from autotune.storage import atomic\n"
        "atomic.write(Path(sys.argv[1]), 'theirs', concurrent=True)"
    )
    path = tmp_path / "page.html"
    with atomic.replacing(path, concurrent=True) as file:
        file.write(b"ours, ")
        file.flush()
        subprocess.run([sys.executable, "-c", code, path], check=True, timeout=240)
        assert path.read_text() == "theirs"
        file.write(b"whole")
    assert path.read_text() == "ours, whole"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_killed_writer_leaves_its_part_only_and_the_next_one_replaces_it(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from autotune.storage import atomic\n"
        "with atomic.replacing(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half' * 10**6); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "a.json"
    subprocess.run([sys.executable, "-c", code, path], check=False, timeout=240)
    assert os.listdir(tmp_path) == [f"a.json{atomic.SUFFIX}"]
    atomic.write(path, "whole")
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic.write(tmp_path / "missing" / "a.json", "1")
