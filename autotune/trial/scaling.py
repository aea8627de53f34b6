"""Resources of one trial: workers, CPUs, GPUs and their placement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.errors import checked, shown
from autotune.trial.checks import is_finite, is_whole

PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True)
class Scaling:
    """The resources of one trial, in the terms of Ray.

    Args:
        num_workers: ranks of one trial.
        cpus_per_worker: CPU cores of one rank; whole numbers give it exclusive cores. By default
            one; beside a whole GPU its share of the node's cores.
        gpus_per_worker: GPUs of one rank; 0 for none. By default one, where the cluster has as
            many as a trial has ranks, else none. A fraction shares a GPU between trials: the
            hardware of such trials is `shared`, and they are never ranked against unshared ones.
        max_concurrent_trials: an upper bound; by default as many as the cluster holds, also
            when it grows or shrinks.
        placement_strategy: `PACK`: a trial is on one node where it fits on one, else on several;
            `SPREAD`: on as many nodes as there are; `STRICT_PACK`: on one node or not at all;
            `STRICT_SPREAD`: each worker on another node or not at all.
        accelerator: the kind of GPU, as Ray names it: `H100`, `A100`.

    Raises:
        ValueError: a number outside its range, named with its value.
    """

    num_workers: int = 1
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    max_concurrent_trials: int | None = None
    placement_strategy: str = "PACK"
    accelerator: str | None = None

    @checked
    def __post_init__(self) -> None:
        _whole("num_workers", self.num_workers)
        if self.placement_strategy not in PLACEMENTS:
            known = ", ".join(PLACEMENTS)
            raise ValueError(
                f"Scaling placement_strategy must be one of {known} "
                f"but got {self.placement_strategy!r}"
            )
        if self.max_concurrent_trials is not None:
            _whole("max_concurrent_trials", self.max_concurrent_trials)
        _amount("cpus_per_worker", self.cpus_per_worker)
        _amount("gpus_per_worker", self.gpus_per_worker)
        if self.cpus_per_worker == 0:
            raise ValueError("Scaling cpus_per_worker must be more than 0 but got 0")
        kind = self.accelerator
        if kind is not None and (not isinstance(kind, str) or not kind):
            raise ValueError(f"Scaling accelerator must be a kind of GPU, as 'H100', got {kind!r}")
        if kind is not None and self.gpus_per_worker == 0:
            raise ValueError(f"Scaling accelerator {kind!r} needs GPUs, but gpus_per_worker is 0")

    @property
    def cpus(self) -> float:
        """CPU cores of one rank; one where they are not decided yet."""
        return 1 if self.cpus_per_worker is None else self.cpus_per_worker

    @property
    def gpus(self) -> float:
        """GPUs of one rank; where they are not decided yet none, or one of the kind asked for."""
        undecided = 0 if self.accelerator is None else 1
        return undecided if self.gpus_per_worker is None else self.gpus_per_worker

    @property
    def decided(self) -> Scaling:
        """The scaling that it is where no cluster decides what was left open."""
        return replace(self, cpus_per_worker=self.cpus, gpus_per_worker=self.gpus)

    @property
    def shared(self) -> bool:
        """Whether ranks of different trials may run on the same core or GPU."""
        return self.cpus < 1 or 0 < self.gpus < 1


def _whole(name: str, value: object) -> None:
    if not is_whole(value, 1):
        raise ValueError(f"Scaling {name} must be a whole number >= 1 but got {shown(value)}")


def _amount(name: str, value: float | None) -> None:
    """Check a number of cores or GPUs; None leaves it to the cluster."""
    if value is None:
        return
    if not is_finite(value) or value < 0:
        raise ValueError(f"Scaling {name} must be a number >= 0 but got {shown(value)}")
    if value > 1 and value != int(value):
        raise ValueError(f"Scaling {name} above 1 must be whole but got {value!r}")
