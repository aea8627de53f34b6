"""Cores are claimed from the machine, so that no two processes think that one is theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autotune.backends.worker.cpu_affinity import claim_cores

HOLD = """
import sys, time
from autotune.backends.worker.cpu_affinity import claim_cores
cores = claim_cores(int(sys.argv[1]), 0)
print(*cores.numbers, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of the test's own, whatever else runs on this machine."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_cores_near_the_gpu_come_first() -> None:
    last = max(os.sched_getaffinity(0))
    mine = claim_cores(1, 0, near=(last, 10_000))
    assert mine.numbers == (last,)
    mine.release()


def test_a_core_has_one_owner_until_it_is_released() -> None:
    everything = len(os.sched_getaffinity(0))
    mine = claim_cores(everything, 0)
    assert mine.numbers == tuple(sorted(os.sched_getaffinity(0)))
    assert claim_cores(1, 0).numbers == ()
    mine.release()
    again = claim_cores(1, 0)
    assert len(again.numbers) == 1
    again.release()


def test_too_few_cores_are_none_at_all() -> None:
    everything = len(os.sched_getaffinity(0))
    assert claim_cores(everything + 1, 0).numbers == ()
    rest = claim_cores(everything, 0)  # nothing was kept
    assert len(rest.numbers) == everything
    rest.release()


def test_the_cores_of_a_killed_process_are_free_again() -> None:
    everything = len(os.sched_getaffinity(0))
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(everything)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert len(other.stdout.readline().split()) == everything
    assert claim_cores(1, 0).numbers == ()
    other.send_signal(signal.SIGKILL)
    mine = claim_cores(1, 5.0)
    assert len(mine.numbers) == 1
    mine.release()
    other.wait()
