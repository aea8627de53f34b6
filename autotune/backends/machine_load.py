"""How busy this machine is with other work than a study's: pressure, load, cores in use."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.backends.worker.cpu_affinity import usable_cores

SWITCH = "AUTOTUNE_MACHINE_LOAD"  # "off": nothing is measured here, and nobody is warned
PRESSURE = Path("/proc/pressure/cpu")
BUSY_SHARE = 0.25  # of the cores in use by others: from there on times are not comparable
LOOK_SECONDS = 0.5  # a look at the machine takes so long


def is_watched() -> bool:
    """Whether it is measured how busy the machine is; not where `AUTOTUNE_MACHINE_LOAD=off`."""
    return os.environ.get(SWITCH) != "off"


def pressure(file: Path = PRESSURE) -> float:
    """The share of the last ten seconds in which some process waited for a core, 0 to 1.

    Where the system does not count it, it is estimated: the share of the processes that are ready
    to run, by the load of the last minute, for which there is no core.
    """
    counted = counted_pressure(file)
    if counted is not None:
        return counted
    load = _load()
    return max(1 - len(usable_cores()) / load, 0.0) if load > 0 else 0.0


def counted_pressure(file: Path = PRESSURE) -> float | None:
    """The pressure that the kernel counts; None where it does not."""
    try:
        some = next(line for line in file.read_text().splitlines() if line.startswith("some "))
        values = dict(part.split("=") for part in some.split()[1:])
        return float(values["avg10"]) / 100
    except (OSError, ValueError, KeyError, StopIteration):
        return None


@dataclass(frozen=True)
class MachineLoad:
    """What other processes use of a machine.

    Args:
        used: cores, on average over a moment, by processes that it has not started.
        cores: those that there are.
        load: the system's load average of the last minute.
    """

    used: float
    cores: int
    load: float

    @property
    def busy(self) -> bool:
        """Whether times that are measured now are not comparable with those of an idle machine."""
        return self.used > BUSY_SHARE * self.cores

    def __str__(self) -> str:
        return f"other processes use {self.used:.1f} of {self.cores} cores (load {self.load:.3g})"

    @property
    def warning(self) -> str:
        """What a user is to know of a machine that is busy.

        >>> MachineLoad(1.94, 2, 24.0).warning
        'other processes use 1.9 of 2 cores (load 24): times will not be comparable'
        """
        return f"{self}: times will not be comparable"


def start_warning(file: Path = PRESSURE) -> str:
    """What a user is to know of this machine before a study begins; empty if it is quiet enough.

    It asks the system only, which says what was in the last seconds, and takes no time.
    """
    return warning_at(_load(), os.cpu_count() or 1, counted_pressure(file))


def warning_at(load: float, cores: int, counted: float | None) -> str:
    """The warning at this load, with the pressure that the kernel counts, if it does.

    The load alone lags behind by a minute, and the pressure alone says little where there are many
    cores.

    >>> warning_at(24.0, 2, 0.9)
    'load 24 on 2 cores: times will not be comparable'
    >>> warning_at(24.0, 2, 0.05), warning_at(1.5, 2, None), warning_at(3.0, 64, 0.5)
    ('', '', '')
    """
    busy = load > cores if counted is None else counted > BUSY_SHARE and load > BUSY_SHARE * cores
    if not busy:
        return ""
    return f"load {load:.3g} on {cores} core{'s' * (cores != 1)}: times will not be comparable"


def look(sleep: Callable[[float], object] = time.sleep) -> MachineLoad:
    """What other processes use of this machine just now; takes half a second."""
    then, before = time.monotonic(), _used()
    sleep(LOOK_SECONDS)
    seconds = max(time.monotonic() - then, 1e-3)
    used = max(_used() - before, 0.0) / seconds
    cores = os.cpu_count() or 1
    return MachineLoad(min(used, float(cores)), cores, _load())


def _used() -> float:
    """The seconds for which other processes have used cores than this one and those it started."""
    cores = psutil.cpu_times()
    return float(cores.user + cores.nice + cores.system) - own_seconds()


def own_seconds() -> float:
    """The CPU seconds of this process and of those that it has started: of a study's own work."""
    processes, seconds = [psutil.Process()], 0.0
    with contextlib.suppress(psutil.Error):  # what a system does not show is not known
        processes += processes[0].children(recursive=True)
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has just ended, and its parent has its time
            used = process.cpu_times()
            seconds += used.user + used.system + used.children_user + used.children_system
    return seconds


def _load() -> float:
    return os.getloadavg()[0]
