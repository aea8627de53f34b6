"""What this machine has for trials: cores, and GPUs."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
from pathlib import Path

from autotune.backends.worker.cpu_affinity import usable_cores

_DRIVER_SECONDS = 10.0  # for the driver of the GPUs to answer
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds in a period, or "max"


def resources() -> dict[str, float]:
    """This machine's resources, as `groups.resources` counts those of a node."""
    return {"CPU": float(cores()), "GPU": float(len(gpus()))}


def cores() -> int:
    """The cores that this process may use at once, also in a container that may not use all."""
    count = len(usable_cores())
    with contextlib.suppress(OSError, ValueError):
        quota, period = _QUOTA.read_text().split()
        count = min(count, math.ceil(int(quota) / int(period)))
    return max(count, 1)


def gpus() -> tuple[str, ...]:
    """This process's GPUs, by the names that `CUDA_VISIBLE_DEVICES` takes.

    Torch is not imported: the driver's own program lists them.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(gpu for gpu in visible.split(",") if gpu.strip() not in ("", "-1"))
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        done = subprocess.run(  # noqa: S603 (the driver's own program, found on the path)
            [program, "--list-gpus"],
            capture_output=True,
            text=True,
            timeout=_DRIVER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    found = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    return tuple(str(number) for number in range(len(found)))
