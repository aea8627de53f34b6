"""Ray started on this machine: once more where it was late, never a third time, and ended."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

import autotune as at
from autotune.backends.ray import pool

# Ray itself gives up at once where it may wait no second for its own head.
LATE = """
import json, os, sys
import psutil, ray
from autotune.backends.ray import cluster
from autotune.errors import StudyError

late, real, waits = int(sys.argv[1]), ray.init, []


def init(**given):
    waits.append("0" if len(waits) < late else "600")
    os.environ["RAY_gcs_server_port_wait_time_s"] = waits[-1]
    return real(**given)


ray.init = init
try:
    cluster.connect(None)
    said = ""
except StudyError as error:
    said = str(error)
alive = [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
heads = sum("gcs_server" in p.name() for p in alive)
print(json.dumps([said, waits, heads]))
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("late", "heads"), [(1, 1), (9, 0)])
def test_a_late_ray_is_started_once_more(late: int, heads: int) -> None:
    """What the first start left is ended."""
    command = [sys.executable, "-c", LATE, str(late)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    said, waits, left = json.loads(done.stdout.splitlines()[-1])
    assert waits == (["0", "600"] if late == 1 else ["0", "0"])
    assert left == heads
    assert said.startswith("Ray does not start on this machine: ") == (late > 1)
    assert "\n" not in said


@pytest.mark.parametrize("fails", ["room_for_trials", "node_resources", "nodes"])
def test_a_pool_that_cannot_be_made_leaves_the_ray_that_it_started(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """In a notebook the next study would take it for the user's own."""
    room = [{"CPU": 2.0}]
    ended: list[str] = []

    def away() -> Any:
        raise ConnectionError("no answer")

    monkeypatch.setattr(pool, "connect", lambda _: True)
    monkeypatch.setattr(pool, "room_for_trials", lambda: room)
    monkeypatch.setattr(pool, "node_resources", lambda: room)
    monkeypatch.setattr(pool, fails, away)
    monkeypatch.setattr(pool.ray, "shutdown", lambda: ended.append("ray"))
    with pytest.raises(ConnectionError):
        pool.RayPool(print, at.Scaling())
    assert ended == ["ray"]


def test_no_ray_is_started_for_a_trainer_that_cannot_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = threading.Lock()
    monkeypatch.setattr(pool, "connect", lambda _: pytest.fail("Ray is started"))
    with pytest.raises(at.UserError, match="the trainer cannot be sent to workers"):
        pool.RayPool(lambda _: lock, at.Scaling())
