"""What a trial ran on, as a stamp: only like is ranked with like."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property


@dataclass(frozen=True)
class Hardware:
    """What a trial ran on. Times are ranked only between equal stamps.

    Args:
        device: the model of the workers' GPUs, or of their CPUs where they have none.
        num_workers, cpus_per_worker, gpus_per_worker: as in `Scaling`.
        shared: whether others may have used the same cores or GPU.
        cpu: the model of the CPUs beside GPUs.
        nodes: how many machines the workers were on.
        interconnect: what workers reach each other by: empty for memory and within one worker.
        label: how the nodes' owner calls their kind (`AUTOTUNE_HARDWARE` on a node).
        before: what a first part of the trial's time ran on, where that was something else.
        mixed: whether the user takes all hardware to be alike: then it equals every such stamp.
    """

    device: str = ""
    num_workers: int = 1
    cpus_per_worker: float = 1.0
    shared: bool = False
    gpus_per_worker: float = 0.0
    cpu: str = ""
    nodes: int = 1
    interconnect: str = ""
    label: str = ""
    before: str = ""
    mixed: bool = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hardware):
            return NotImplemented
        return self is other or self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)

    @cached_property  # asked of every trial at every suggestion
    def _known(self) -> tuple[object, ...]:
        """What stamps are compared by."""
        if self.mixed:
            return ("mixed",)
        return tuple(getattr(self, f.name) for f in fields(self))

    @property
    def now(self) -> Hardware:
        """What the trial runs on, wherever it was before and however its time is ranked."""
        return replace(self, before="", mixed=False)

    @property
    def model(self) -> str:
        """What one worker has, in words: the stamp without number and sharing."""
        return f"{self.device} ({', '.join(self._parts(' a worker'))}){self._earlier}"

    def _parts(self, each: str = "") -> list[str]:
        """What is to be said beside the device: only what is not as usual."""
        gpus = f"{self.gpus_per_worker:g} GPU{each}" if self.gpus_per_worker not in (0, 1) else ""
        nodes = f"{self.nodes} nodes" if self.nodes > 1 else ""
        said = gpus, f"{self.cpus_per_worker:g} CPU{each}", self.cpu, nodes
        return [part for part in (*said, self.interconnect, self.label) if part]

    @property
    def _earlier(self) -> str:
        return f", before on {self.before}" if self.before else ""

    def __str__(self) -> str:
        shared = ["shared"] if self.shared else []
        parts = ", ".join([*self._parts(), *shared])
        return f"{self.num_workers} x {self.device} ({parts}){self._earlier}"
