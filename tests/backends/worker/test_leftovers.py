"""What processes that end, or are killed, leave in the temp directory: nothing."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ranks import Remote
from toys import chosen

from autotune.backends.worker.diagnostics import stack_of


def left(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if not name.startswith("autotune-cores-")]


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_a_rank_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The folder of its cores' locks is one for all."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    remote = Remote(chosen)
    assert remote.start({"train": "toy"}).kind == "milestone"
    if how == "killed":
        remote.close()
    else:
        remote.leave()
    assert left(tmp_path) == []


def test_a_rank_says_where_it_is_stuck_and_a_stranger_is_not_asked() -> None:
    """On another node the same number is somebody else's process, which the signal would end."""
    remote, stranger = Remote(chosen), subprocess.Popen(["sleep", "60"])
    try:
        place = remote.place
        remote.start({"train": "toy", "fault": "hang"})
        for _ in range(2):
            remote("resume", None, None)
        remote.send("resume", None, None)
        end = time.monotonic() + 600
        while "in fault" not in (said := stack_of(place)):
            assert time.monotonic() < end, said
            time.sleep(0.1)
        assert "rank.py" not in said
        handle = place.stacks.rpartition("/")[2]
        for stacks in (place.stacks, f"/proc/{stranger.pid}/fd/{handle}", "/proc/1/nothing"):
            assert stack_of(replace(place, pid=stranger.pid, stacks=stacks)) == "  (no answer)"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        remote.close()
