"""Ray started on this machine: once more where it was late, and never a third time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
