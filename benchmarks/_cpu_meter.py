"""The CPU time of a process and its descendants, also of those that have died."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SAMPLE_SECONDS = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class CpuMeter:
    """CPU seconds of a process and all its descendants over time, dead ones included.

    It reads /proc four times a second; what a process uses after the last reading before its
    death is missed, which favours sides that end many processes.

    Args:
        root: the process.
        name: a text; processes with it in their command line are counted apart, too.

    Attributes:
        seconds: of each process that was seen, by its id and start time.
        named: those with that text.
        timeline: at each reading the moment, the CPU seconds of all, and of the named ones.
    """

    root: int
    name: str
    seconds: dict[tuple[int, int], float] = field(default_factory=dict)
    named: set[tuple[int, int]] = field(default_factory=set)
    timeline: list[tuple[float, float, float]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Take samples until `stop`."""
        family = {self.root}
        while not self._over.wait(_SAMPLE_SECONDS):
            self.sample(family)

    def stop(self) -> None:
        self._over.set()

    def sample(self, family: set[int]) -> None:
        """Add one point to the timeline: time, CPU seconds, of which of the named processes."""
        found = {pid: (parent, key, used) for pid, parent, key, used in _processes()}
        grown = True
        while grown:
            new = {p for p, (parent, _, _) in found.items() if parent in family} - family
            family |= new
            grown = bool(new)
        for pid in family & found.keys():
            _, key, used = found[pid]
            if key not in self.named and self.name in _command(pid):  # exec may have come since
                self.named.add(key)
            self.seconds[key] = used
        named = sum(self.seconds[key] for key in self.named)
        self.timeline.append((time.monotonic(), sum(self.seconds.values()), named))

    def between(self, begin: float, end: float) -> tuple[float, float]:
        """CPU seconds between two moments of the monotonic clock: of all, of the named."""
        first, last = self._at(begin), self._at(end)
        return last[0] - first[0], last[1] - first[1]

    def _at(self, moment: float) -> tuple[float, float]:
        """CPU seconds of all and of the named until a moment; before the first reading, those."""
        before = (0.0, 0.0, 0.0)
        for point in self.timeline:
            if point[0] >= moment:
                share = (moment - before[0]) / (point[0] - before[0]) if before[0] else 1.0
                _, total, named = before
                return total + share * (point[1] - total), named + share * (point[2] - named)
            before = point
        return before[1:]


def _processes() -> Iterator[tuple[int, int, tuple[int, int], float]]:
    """Of every process: id, parent, id with start time, CPU seconds."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text()
        except OSError:
            continue
        pid = int(entry.name)
        words = text[text.rindex(")") + 2 :].split()
        yield pid, int(words[1]), (pid, int(words[19])), (int(words[11]) + int(words[12])) / _TICKS


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
