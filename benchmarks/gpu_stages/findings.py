"""What a stage finds, and what a stage is given.

A stage is a function `stage(run)` that yields findings one after another. Each is written down at
once, so that what was found before a deadline is kept.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # seconds, for processes that only pass findings on
    import torch
    from torch import Tensor

Verdict = Literal["right", "wrong", "met", "missed", "measured", "not run"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    `right` and `wrong` are verdicts on a result, `met` and `missed` on an aim of speed; `measured`
    has no aim; `not run` says in its text why.
    """

    name: str
    verdict: Verdict
    value: float | None = None
    unit: str = ""
    aim: str = ""
    text: str = ""

    def __str__(self) -> str:
        value = "" if self.value is None else f"{self.value:.4g} {self.unit}".strip()
        aim = f"aim: {self.aim}" if self.aim else ""
        parts = [part for part in (value, aim, self.text) if part]
        return f"  {self.verdict:8}  {self.name}" + (f": {', '.join(parts)}" if parts else "")


@dataclass(frozen=True)
class Run:
    """What a stage is given.

    Args:
        kind: where it trains, "cuda" or "cpu".
        tiny: the smallest sizes, for a run on a CPU that only shows that the stage works; speeds
            are then measured without a verdict.
        data_dir: the folder of the data sets, if there is one.
        folder: a scratch folder of the stage's own.
        ends: when the stage has to be done, on the monotonic clock.
    """

    kind: Literal["cuda", "cpu"]
    tiny: bool
    folder: Path
    data_dir: str | None = None
    ends: float = field(default=math.inf)

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device(self.kind, 0) if self.on_gpu else torch.device(self.kind)

    @property
    def on_gpu(self) -> bool:
        return self.kind == "cuda"

    @property
    def gpus(self) -> float:
        """GPUs of a rank."""
        return 1.0 if self.on_gpu else 0.0

    @property
    def left(self) -> float:
        """Seconds until the stage has to be done."""
        return self.ends - time.monotonic()

    def pick(self, full: int, tiny: int) -> int:
        """A size: of a full run, or of a tiny one."""
        return tiny if self.tiny else full

    def at_least(self, name: str, value: float, least: float, unit: str = "") -> Finding:
        """A speed, with the aim that it be at least so much."""
        return self._speed(name, value, value >= least, f"at least {least:g}", unit)

    def at_most(self, name: str, value: float, most: float, unit: str = "") -> Finding:
        """A cost, with the aim that it be at most so much."""
        return self._speed(name, value, value <= most, f"at most {most:g}", unit)

    def _speed(self, name: str, value: float, met: bool, aim: str, unit: str) -> Finding:
        if self.tiny:
            return measured(name, value, unit)
        return Finding(name, "met" if met else "missed", value, unit, f"{aim} {unit}".strip())


def checked(name: str, holds: bool, text: str = "", value: float | None = None) -> Finding:
    """A result that is right or wrong; `text` says what was found."""
    return Finding(name, "right" if holds else "wrong", value, text=text)


def close(name: str, distance: float, most: float) -> Finding:
    """A relative distance that may be at most so much; NaN is wrong."""
    return Finding(name, "right" if distance <= most else "wrong", distance, aim=f"<= {most:g}")


def measured(name: str, value: float, unit: str = "", text: str = "") -> Finding:
    """A figure without an aim."""
    return Finding(name, "measured", value, unit, text=text)


def not_run(name: str, why: str) -> Finding:
    """Something that could not be tried here."""
    return Finding(name, "not run", text=why)


def write(findings: Iterator[Finding], file: Path) -> None:
    """Append each finding to the file as soon as it is there."""
    with file.open("a", encoding="utf-8") as out:
        for finding in findings:
            out.write(json.dumps(asdict(finding)) + "\n")
            out.flush()


def read(file: Path) -> list[Finding]:
    """The findings of a file; a last line that was cut off is left out."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            found.append(Finding(**json.loads(line)))
        except (ValueError, TypeError):
            break
    return found


def seconds_of(run: Run, work: Callable[[], object], repeats: int) -> float:
    """The median seconds of one call, after two that warm up; on a GPU by its own events."""
    import torch

    for _ in range(2):
        work()
    if not run.on_gpu:
        return _median([_wall(work) for _ in range(repeats)])
    made: Any = partial(torch.cuda.Event, enable_timing=True)
    events = [(made(), made()) for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize(run.device)
    return _median([begin.elapsed_time(end) / 1000 for begin, end in events])


def _wall(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def copy_bandwidth(run: Run) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    import torch

    source = torch.ones(run.pick(2**28, 2**20), device=run.device)
    target = torch.empty_like(source)
    seconds = seconds_of(run, lambda: target.copy_(source), run.pick(20, 3))
    return 2 * source.numel() * source.element_size() / seconds


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    """The relative distance of two lists of tensors, in float64 on the host."""
    import torch

    one, other = (torch.cat([x.detach().cpu().double().flatten() for x in xs]) for xs in (a, b))
    return float((one - other).norm() / other.norm())
