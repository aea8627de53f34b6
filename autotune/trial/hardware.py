"""Hardware fingerprints: only times on comparable hardware are ranked together."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property


@dataclass(frozen=True)
class Hardware:
    """The fingerprint of the hardware of a trial. Times are comparable if fingerprints are equal.

    Args:
        device: the model of the workers' GPUs, or of their CPUs where they have none.
        num_workers, cpus_per_worker, gpus_per_worker: as in `Scaling`.
        shared: whether other trials may have used the same cores or GPU.
        cpu: the model of the CPUs beside GPUs.
        nodes: the number of machines.
        interconnect: between the workers; empty for memory, and for a single worker.
        label: the node owner's name for this kind of node (`AUTOTUNE_HARDWARE` on a node).
        before: the hardware of the first part of the trial's time, if that was another.
        mixed: whether the user takes all hardware as comparable; such fingerprints are all equal.
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
        return self is other or self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property  # compared for every trial at every suggestion
    def _key(self) -> tuple[object, ...]:
        """The key by which fingerprints are compared."""
        if self.mixed:
            return ("mixed",)
        return tuple(getattr(self, f.name) for f in fields(self))

    @property
    def now(self) -> Hardware:
        """The hardware that the trial runs on now, whatever it ran on before."""
        return replace(self, before="", mixed=False)

    @property
    def model(self) -> str:
        """The hardware of one worker as text, without the number of workers and sharing."""
        return f"{self.device} ({', '.join(self._parts(' a worker'))}){self._earlier}"

    def _parts(self, each: str = "") -> list[str]:
        """The parts of the text beside the device, without usual values."""
        gpus = f"{self.gpus_per_worker:g} GPU{each}" if self.gpus_per_worker not in (0, 1) else ""
        nodes = f"{self.nodes} nodes" if self.nodes > 1 else ""
        parts = gpus, f"{self.cpus_per_worker:g} CPU{each}", self.cpu, nodes
        return [part for part in (*parts, self.interconnect, self.label) if part]

    @property
    def _earlier(self) -> str:
        return f", before on {self.before}" if self.before else ""

    def __str__(self) -> str:
        shared = ["shared"] if self.shared else []
        parts = ", ".join([*self._parts(), *shared])
        return f"{self.num_workers} x {self.device} ({parts}){self._earlier}"
