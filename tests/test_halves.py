"""The suite in two processes: together they run every test once, and one failure is a failure."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def halves() -> Any:
    spec = importlib.util.spec_from_file_location("halves", ROOT / "tests" / "halves.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_keeps_time_is_there(halves: Any) -> None:
    """A file that is renamed must not leave the first process without a word."""
    assert [path for path in halves.PACED if not (ROOT / path).exists()] == []


def test_both_run_every_test_once(halves: Any) -> None:
    files = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("test_*.py"))
    paced, rest = halves.commands(["--co"])
    first = [f for f in files if any(Path(f).is_relative_to(p) for p in paced[4:])]
    ignored = [w.partition("=")[2] for w in rest if w.startswith("--ignore=")]
    second = [f for f in files if not any(Path(f).is_relative_to(p) for p in ignored)]
    assert "tests/pools/test_ray.py" in first
    assert "tests/test_space.py" in second
    assert sorted(first + second) == files


@pytest.mark.parametrize(
    ("paced", "rest", "code"),
    [("exit 0", "exit 0", 0), ("exit 1", "exit 0", 1), ("exit 0", "exit 1", 1),
     ("exit 5", "exit 0", 0), ("exit 0", "kill -9 $$", -9)],
)  # fmt: skip
def test_one_failure_is_a_failure(
    halves: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    paced: str,
    rest: str,
    code: int,
) -> None:
    spoken = tuple(["sh", "-c", f"echo {which}; {does}"] for which, does in
                   (("the first", paced), ("the second in $TMPDIR", rest)))  # fmt: skip
    monkeypatch.setattr(halves, "commands", lambda given: spoken)
    assert halves.main([]) == code
    first, second = (line for line in capfd.readouterr().out.splitlines() if "the " in line[:4])
    assert first == "the first"
    assert not Path(second.partition(" in ")[2]).exists(), "nothing is left"
    assert subprocess.os.environ.get("TMPDIR") != second.partition(" in ")[2]


def test_the_closing_line_counts_both(halves: Any, tmp_path: Path) -> None:
    files = [tmp_path / "a.xml", tmp_path / "b.xml", tmp_path / "never.xml"]
    suite = "<testsuites><testsuite {}/></testsuites>"
    files[0].write_text(suite.format('tests="12" failures="1" errors="0" skipped="2"'))
    files[1].write_text(suite.format('tests="30" failures="0" errors="1" skipped="0"'))
    line = halves.closing(files, 125.5)
    assert line.strip("= ") == "both: 1 failed, 38 passed, 2 skipped, 1 errors in 125.50s (2:05)"
    assert "no tests ran" in halves.closing([], 0.1)
