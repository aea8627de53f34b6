"""Which small faults do the tests find? Each recorded mutant against the tests of its part.

A mutant (`_mutants.py`) is one small fault in the code. It is killed if a test of its part fails
with it. This script copies the tracked files to a temporary folder, runs the tests of each part
without a fault (they must pass), then applies the mutants one by one and runs `pytest -x -q`
without slow and soak tests. A run over the time limit, or one that ends in any other way, decides
nothing.

    python benchmarks/research/mutants.py
    python benchmarks/research/mutants.py --parts journal space --names "no flush"

Exit code 1: a mutant no longer applies (its text must be brought up to date), or is not killed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _mutants import MUTANTS, TESTS, Mutant

ROOT = Path(__file__).parents[2]
KILLED, SURVIVED, UNDECIDED = "killed", "survived", "not decided"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_TIMEOUT = "Timeout (>"  # how pytest-timeout says that a test ran into its limit


@dataclass(frozen=True)
class Verdict:
    """What a run of tests says: killed, survived or not decided, and the test that failed."""

    outcome: str
    test: str
    seconds: float


def outdated(mutants: Sequence[Mutant], root: Path) -> list[str]:
    """The names of the mutants whose text does not occur exactly once in their file."""

    def count(mutant: Mutant) -> int:
        file = root / mutant.file
        return file.read_text().count(mutant.before) if file.is_file() else 0

    return [mutant.name for mutant in mutants if count(mutant) != 1]


def copy_tree(root: Path, folder: Path) -> None:
    """Copy the files that git tracks, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)


@contextmanager
def applied(mutant: Mutant, root: Path) -> Iterator[None]:
    """Inside, the file below `root` has the fault."""
    file = root / mutant.file
    original = file.read_text()
    _write(file, original.replace(mutant.before, mutant.after))
    try:
        yield
    finally:
        _write(file, original)


def _write(file: Path, text: str) -> None:
    """Write a module, and remove its bytecode: a file of the same size and second counts as old."""
    file.write_text(text)
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        compiled.unlink()


def run_tests(root: Path, tests: Sequence[str], limit: float) -> Verdict:
    """Run the tests below `root` up to the first failure, for at most `limit` seconds."""
    start = time.monotonic()
    options = ["-x", "-q", "-rfE", "-m", "not slow and not soak", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "--hypothesis-seed=0", *tests]
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "1000"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, timeout=limit, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return Verdict(UNDECIDED, f"more than {limit:.0f} s", limit)
    return verdict(done.returncode, done.stdout, time.monotonic() - start)


def verdict(code: int, output: str, seconds: float) -> Verdict:
    """What pytest's exit code and output mean."""
    failed = _FAILED.search(output)
    if code == 0:
        return Verdict(SURVIVED, "", seconds)
    if code in (1, 2) and failed is not None and _TIMEOUT not in output:
        return Verdict(KILLED, failed[1], seconds)
    last = next(iter(output.strip().splitlines()[-1:]), "no output")
    return Verdict(UNDECIDED, f"exit code {code}: {last}", seconds)


def run_mutants(mutants: Sequence[Mutant], root: Path, limit: float) -> Iterator[Verdict]:
    """A verdict for each mutant; none is decided where the tests fail without a fault."""
    passing: dict[str, Verdict] = {}
    for mutant in mutants:
        if mutant.part not in passing:
            passing[mutant.part] = run_tests(root, mutant.tests, limit)
        before = passing[mutant.part]
        if before.outcome != SURVIVED:
            yield Verdict(UNDECIDED, f"without a fault: {before.test}", before.seconds)
            continue
        with applied(mutant, root):
            yield run_tests(root, mutant.tests, limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=sorted(TESTS), default=sorted(TESTS))
    parser.add_argument("--names", nargs="+", default=[""], help="parts of names of mutants")
    parser.add_argument("--limit", type=float, default=1800, help="seconds of one run of tests")
    options = parser.parse_args()
    stale = outdated(MUTANTS, ROOT)
    if stale:
        print(f"no longer apply: {', '.join(stale)}")
        return 1
    chosen = [
        m for m in MUTANTS if m.part in options.parts and any(n in m.name for n in options.names)
    ]
    killed = 0
    print("| mutant | part | outcome | by | seconds |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy_tree(ROOT, Path(folder))
        for mutant, found in zip(
            chosen, run_mutants(chosen, Path(folder), options.limit), strict=True
        ):
            cells = mutant.name, mutant.part, found.outcome, found.test, f"{found.seconds:.0f}"
            print(f"| {' | '.join(cells)} |", flush=True)
            killed += found.outcome == KILLED
    print(f"{killed} of {len(chosen)} killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
