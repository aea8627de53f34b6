"""`autotune doctor`: what this machine has, and whether the parts that a study needs work here."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from autotune.backends import machine_load
from autotune.backends.worker.cpu_affinity import usable_cores
from autotune.cli import gpu_checks
from autotune.storage.atomic import sync_content
from autotune.study.versions import version_of


@dataclass(frozen=True)
class Check:
    """One thing looked at: whether it is well, and one line about it.

    `warns` where it works and something is to be known all the same.
    """

    name: str
    ok: bool
    says: str
    warns: bool = False

    def __str__(self) -> str:
        mark = "FAIL" if not self.ok else "warn" if self.warns else "ok"
        return f"{mark:<4}  {self.name}: {self.says}"


class Remark(str):
    """What a check says that works with a warning."""

    __slots__ = ()


def checks() -> list[Check]:
    """All checks, each run for real: a process group is opened, Ray is started, a file written."""
    return [_run(name, look) for name, look in _CHECKS.items()]


def _run(name: str, look: Callable[[], str]) -> Check:
    try:
        says = look()
        return Check(name, True, says, isinstance(says, Remark))
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        return Check(name, False, f"{type(error).__name__}: {line}")


def _python() -> str:
    return f"{platform.python_version()} on {platform.platform()}"


def _packages() -> str:
    names = ("torch", "ray", "optuna", "mlflow", "numpy")
    installed = [f"{name} {metadata.version(name)}" for name in names]
    return ", ".join([f"autotune {version_of('autotune') or 'unknown'}", *installed])


def _cores() -> str:
    usable, there = len(usable_cores()), os.cpu_count()
    return f"{usable} usable of {there}"


def _load() -> str:
    load, pressure = machine_load.look(), machine_load.counted_pressure()
    waits = f"; pressure {pressure:.0%}" if pressure is not None else ""
    return Remark(f"{load.warning}{waits}") if load.busy else f"{load}{waits}"


def _memory() -> str:
    import psutil

    free = psutil.virtual_memory().available / 2**30
    where = Path("/dev/shm")  # noqa: S108 (Ray's object store lives there)
    if not where.is_dir():  # not Linux
        return f"{free:.1f} GiB free"
    shared = shutil.disk_usage(where).free / 2**30
    if free < 1 or shared < 0.3:
        raise MemoryError(
            f"{free:.1f} GiB free, {shared:.1f} GiB of shared memory (/dev/shm): too little; a "
            "container gets more by --shm-size"
        )
    return f"{free:.1f} GiB free, {shared:.1f} GiB of shared memory"


def _group() -> str:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    store = HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        ones = torch.ones(1)
        dist.all_reduce(ones)
    finally:
        dist.destroy_process_group()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return (
        f"gloo opens and reduces; {gpu_checks.try_nccl(gpus)}" if gpus else "gloo opens and reduces"
    )


def _ray() -> str:
    import torch

    from autotune.backends.ray.cluster import try_out

    found = try_out()
    parts = "; ".join(f"{n.get('CPU', 0):g} CPU, {n.get('GPU', 0):g} GPU" for n in found)
    counted, seen = sum(n.get("GPU", 0) for n in found), torch.cuda.device_count()
    if counted != seen:
        raise RuntimeError(f"Ray counts {counted:g} GPUs and torch {seen}: trials get Ray's")
    return f"starts and runs a task ({parts})"


def _folder() -> str:
    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
        file.write(b"x")
        file.flush()
        sync_content(file.fileno())
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    return f"{Path.cwd()} is writable, {free:.1f} GiB free"


def _mlflow() -> str:
    version = metadata.version("mlflow")
    return f"MLflow {version}, SQLite {sqlite3.sqlite_version} for the default store"


_CHECKS: dict[str, Callable[[], str]] = {
    "python": _python,
    "packages": _packages,
    "cores": _cores,
    "load": _load,
    "memory": _memory,
    "GPUs": gpu_checks.try_gpus,
    "state of GPUs": gpu_checks.state,
    "process group": _group,
    "ray": _ray,
    "folder": _folder,
    "tracking": _mlflow,
}
