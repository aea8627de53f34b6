"""How long a rank waited for other processes while it trained.

The kernel counts for each thread how long it was ready to run and had no core (`schedstat`). Of
these waits only those count in which other processes used the rank's cores: a rank whose own
threads or data loaders compete with each other is as slow on an idle machine. Where the kernel does
not count waits, they are estimated from the rank's CPU seconds and the machine's pressure.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from autotune.backends.machine_load import is_watched, pressure
from autotune.backends.worker.cpu_affinity import usable_cores
from autotune.backends.worker.gpu_use import Slowed, slowed_gpus

_WINDOW_SECONDS = 0.5  # the least time between two looks, which cost up to a millisecond
_NANOSECONDS = 1e-9
_WORK = ("user", "nice", "system", "irq", "softirq", "steal")  # of a core's times


@dataclass(frozen=True)
class Waits:
    """Seconds since their start that each thread and each child process waited for a core."""

    threads: Mapping[str, float]
    children: Mapping[str, float] = field(default_factory=dict)
    children_cpu: float = 0.0


@dataclass(frozen=True)
class Look:
    """What a rank sees at one moment, in seconds.

    `at` is the clock's time, `waits` is None where the kernel does not count them, `cpu` is the CPU
    time of this process and its children, and `used` what all processes have used of its cores.
    """

    at: float
    waits: Waits | None
    cpu: float
    used: float


def waits(process: Path) -> Waits | None:
    """The waits of the process whose folder in `/proc` this is; None where they are not counted."""
    try:
        threads = os.listdir(process / "task")
    except OSError:
        return None
    own: dict[str, float] = {}
    children: dict[str, float] = {}
    cpu = 0.0
    for thread in threads:
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
            own[thread] = _counted(f"{process}/task/{thread}/schedstat")[1]
    for child in _children(process, threads):
        with contextlib.suppress(OSError, ValueError, IndexError):
            used, nice = _whole(process.parent / child / "stat")
            cpu += used
            if nice <= os.getpriority(os.PRIO_PROCESS, 0):  # it is no work in the background
                children[child] = _counted(f"{process.parent}/{child}/schedstat")[1]
    return Waits(own, children, cpu) if own else None


def _counted(file: str) -> tuple[float, float]:
    """The seconds that a thread ran, and that it waited."""
    opened = os.open(file, os.O_RDONLY)  # a process has dozens of them
    try:
        ran, waited = os.read(opened, 100).split()[:2]
    finally:
        os.close(opened)
    return int(ran) * _NANOSECONDS, int(waited) * _NANOSECONDS


def _whole(stat: Path) -> tuple[float, int]:
    """The CPU seconds of all threads of a process, and by how much its priority is lowered."""
    after_name = stat.read_text().rpartition(")")[2].split()
    ticks = int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(after_name[16])


def _children(process: Path, threads: list[str]) -> list[str]:
    """The processes that the main thread and the newest ones have started: the data loaders.

    The kernel lists threads in the order of their start; their numbers begin anew at some time.
    """
    found: list[str] = []
    for thread in {process.name, *threads[-2:]}:
        with contextlib.suppress(OSError):
            found += (process / "task" / thread / "children").read_text().split()
    return found


def look() -> Look:
    """Look at this process, whose cores are those that it may run on."""
    seen = waits(Path("/proc/self").resolve())
    cpu = time.process_time() + (seen.children_cpu if seen is not None else 0.0)
    return Look(time.perf_counter(), seen, cpu, _used())


def _used() -> float:
    """The seconds that all processes have used of the cores on which this one may run."""
    cores = psutil.cpu_times(percpu=True)
    own = usable_cores()
    chosen = [c for n, c in enumerate(cores) if n in own] or cores
    return sum(getattr(core, name, 0.0) for core in chosen for name in _WORK)


def waited(
    before: Look, now: Look, data_share: float, cores: int, busy: Callable[[], float]
) -> tuple[float, float]:
    """How long a rank waited between two looks, and how long others used its cores then.

    Args:
        data_share: the share of the time in which training waited for data. Only so far do waits
            of child processes, which load data, slow it down.
        cores: of the rank.
        busy: the machine's pressure, 0 to 1, where waits are not counted.
    """
    seconds = now.at - before.at
    others = max((now.used - before.used) - (now.cpu - before.cpu), 0.0)
    if before.waits is None or now.waits is None:
        idle = 1 - (now.cpu - before.cpu) / (max(cores, 1) * seconds) if seconds > 0 else 0.0
        return seconds * min(max(idle, 0.0), busy()), seconds
    own = _longest(before.waits.threads, now.waits.threads)
    loading = _longest(before.waits.children, now.waits.children)
    return min(own + min(loading, data_share * seconds), seconds), others


def _longest(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """The longest of the waits since `before`; one that is new has waited since it began."""
    return max((now[name] - before.get(name, 0.0) for name in now), default=0.0)


@dataclass(frozen=True)
class Wait:
    """Seconds of training in which a rank waited for what others used, and what slowed its GPUs."""

    seconds: float = 0.0
    by: str = ""


class WaitMeter:
    """Measures how long this rank waits for its cores while one trial trains.

    Between milestones that are close together it does not look each time: what was waited is then
    counted by the share of the time that was training.

    Args:
        cores: how many this rank has for itself; used only where the kernel counts no waits.
        gpus: what others take of its GPUs since it was last asked, and what slows them.
        see: looks at this process.
        busy: the machine's pressure, 0 to 1.
        clock: seconds, by which `see` says when it looked.
        on: whether to measure; by default as `machine_load.is_watched` says.
        in_child: whether the trainer's work is done by a process that it starts.
    """

    def __init__(
        self,
        cores: int = 1,
        gpus: Callable[[], Slowed] = slowed_gpus,
        see: Callable[[], Look] = look,
        busy: Callable[[], float] = pressure,
        clock: Callable[[], float] = time.perf_counter,
        on: bool | None = None,
        in_child: bool = False,
    ) -> None:
        self._on = is_watched() if on is None else on
        self._cores = cores
        self._in_child = in_child
        self._gpus = gpus
        self._see = see
        self._busy = busy
        self._clock = clock
        self._before: Look | None = None
        self._now: Look | None = None
        self._goes_on = False  # the time since the last look is too short for another one
        self._trained = self._data = 0.0
        self._waits = self._others = self._total = 0.0

    def begin(self) -> float:
        """Training goes on: the time at which it does."""
        if self._on and not self._goes_on:
            self._before = self._see()
            self._trained = self._data = 0.0
        self._goes_on = False
        return self._clock()

    def end(self) -> float:
        """Training pauses at a milestone: the time at which it did."""
        ended, before = self._clock(), self._before
        late = before is not None and ended - before.at >= _WINDOW_SECONDS
        self._now = self._see() if late else None
        return ended

    def waited(self, training: float, data: float) -> Wait | None:
        """How long this rank waited of the seconds that it trained since it was last asked.

        None where nothing is measured.

        Args:
            training: seconds between the last `begin` and `end` that were training.
            data: the seconds of these that it waited for data.
        """
        if not self._on:
            return None
        self._trained += training
        self._data += data
        before, now = self._before, self._now
        if before is None or now is None:
            self._goes_on = True
            return Wait()
        seconds = now.at - before.at
        share = min(self._trained / seconds, 1.0) if seconds > 0 else 0.0
        data_share = min(self._data / seconds, 1.0) if seconds > 0 else 0.0
        data_share = 1.0 if self._in_child else data_share
        waits, others = waited(before, now, data_share, self._cores, self._busy)
        self._waits += share * waits
        self._others += share * others
        total = max(min(self._waits, self._others), self._total)
        gained, self._total = total - self._total, total
        slowed = self._gpus()
        return Wait(min(gained + share * seconds * slowed.share, self._trained), slowed.by)
