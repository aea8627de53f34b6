"""Runs the tests in two processes beside each other: `make test` runs `python tests/halves.py`.

Most of the suite's time is waiting: for Ray, for MLflow, for the end of a study. One process runs
what keeps time or competes for the machine, at the usual priority. The other one runs the rest at
the lowest priority, so that it takes what the first one leaves, and cannot make it late. Ray's
sockets and the locks of cores lie in the folder for temporary files: each process has one of its
own.

What is given on the command line goes to pytest, in both: `python tests/halves.py -k space`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PACED = (  # they time what happens, or have services, clusters or both cores of the machine
    "tests/controllers/test_pb2.py",
    "tests/controllers/test_population_study.py",
    "tests/integrations/test_frameworks.py",
    "tests/pools",
    "tests/test_benchmarks.py",
    "tests/test_cli.py",
    "tests/test_clock.py",
    "tests/test_disk.py",
    "tests/test_export.py",
    "tests/test_faults.py",
    "tests/test_kill.py",
    "tests/test_out_of_reach.py",
    "tests/test_peers.py",
    "tests/test_services.py",
    "tests/test_soak.py",
    "tests/test_submit.py",
    "tests/trackers",
)
_NONE_FOUND = 5  # pytest's exit code where no test is selected
_LOWEST = 19
_TIMEOUT = 900  # seconds for one test that gets what is left over


def commands(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """pytest over what keeps time, and over the rest: together all tests, each of them once."""
    pytest = [sys.executable, "-m", "pytest", *given]
    ignored = [f"--ignore={path}" for path in PACED]
    rest = ["nice", "-n", str(_LOWEST), *pytest, "-o", f"timeout={_TIMEOUT}", *ignored]
    return [*pytest, *PACED], rest


def main(given: Sequence[str]) -> int:
    """Run both; the first to be seen as it runs, the other one once it has ended."""
    paced, rest = commands(given)
    place = Path(tempfile.mkdtemp(prefix="h"))  # a short name: paths of sockets have 107 bytes
    env: Mapping[str, str] = {**os.environ, "TMPDIR": str(place)}
    told, begin = (place / "paced.xml", place / "rest.xml"), time.monotonic()
    try:
        with open(place / "log", "wb+") as log:
            rest = [*rest, f"--junitxml={told[1]}"]
            beside = subprocess.Popen(rest, cwd=ROOT, env=env, stdout=log, stderr=log)
            try:
                paced = [*paced, f"--junitxml={told[0]}"]
                codes = [subprocess.run(paced, cwd=ROOT, check=False).returncode, beside.wait()]
            finally:
                beside.kill()
                beside.wait()
                print("\n--- the rest, which ran beside these ---", flush=True)
                log.seek(0)
                shutil.copyfileobj(log, sys.stdout.buffer)
                print(closing(told, time.monotonic() - begin), flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return next((code for code in codes if code not in (0, _NONE_FOUND)), 0)


def closing(told: Sequence[Path], seconds: float) -> str:
    """A closing line like pytest's, of what the processes counted together."""
    names = ("failures", "errors", "skipped", "tests")
    sums = dict.fromkeys(names, 0)
    for file in told:
        suites = ElementTree.parse(file).iter("testsuite") if file.exists() else ()
        for suite in suites:
            sums = {name: sums[name] + int(suite.get(name, 0)) for name in names}
    counts = [sums["failures"], sums["tests"] - sum(sums[n] for n in names[:3])]
    counts += [sums["skipped"], sums["errors"]]
    kinds = ("failed", "passed", "skipped", "errors")
    parts = ", ".join(f"{n} {kind}" for n, kind in zip(counts, kinds, strict=True) if n)
    minutes = f"({int(seconds) // 60}:{int(seconds) % 60:02d})"
    return f" both: {parts or 'no tests ran'} in {seconds:.2f}s {minutes} ".center(80, "=")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
