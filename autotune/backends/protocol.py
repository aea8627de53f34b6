"""The protocol between the study and whatever runs its trials.

A pool runs trials from milestone to milestone. At each one all ranks of the trial wait until the
study answers `resume` or `stop`; so every rank acts on one decision. A pool knows nothing of
targets, samplers or pruners, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from autotune.backends.monitoring import Figure
from autotune.trial import Change, Checkpoint, Clock, Config, Hardware, Metrics, Report


@dataclass(frozen=True)
class Launch:
    """What a worker group needs to start a trial.

    Args:
        trial, config, seed: the trial's.
        clock: the clock of the study's target.
        checkpoint: where the trial continues from, if it does.
        base, waited: the trial's time before this start, and of it what it waited.
        microbatch: passed to the trainer as `config["microbatch"]`, if given.
        comparable_to: hardware on which an idle group is preferred, so that times can be compared.
        metric: the target's, which a number that the trainer returns is.
        evaluations: how many milestones are evaluated, the first ones; None: all.
    """

    trial: int
    config: Config
    seed: int
    clock: str = "train"
    checkpoint: Checkpoint | None = None
    base: Clock = field(default_factory=Clock)
    microbatch: int | None = None
    comparable_to: Hardware | None = None
    metric: str = ""
    waited: float = 0.0
    evaluations: int | None = None


@dataclass(frozen=True)
class Progress:
    """All ranks wait at a milestone.

    Args:
        report: what they report together; None where its metrics come at the next milestone.
        can_save: whether a checkpoint can be asked for.
        saved: a checkpoint that was asked for earlier and that all ranks have written since.
        save_pending: whether one is still being written.
        save_error: why one could not be written, or an empty string.
    """

    trial: int
    report: Report | None
    can_save: bool = False
    saved: Checkpoint | None = None
    save_pending: bool = False
    save_error: str = ""


@dataclass(frozen=True)
class Measured:
    """All ranks have measured what their milestone can, and wait at it still; rank 0's metrics."""

    trial: int
    metrics: Metrics


@dataclass(frozen=True)
class Stopped:
    """The trial was stopped as asked; its checkpoint, if one was asked for and could be made.

    Args:
        save_error: why it could not be made, or an empty string.
    """

    trial: int
    saved: Checkpoint | None = None
    save_error: str = ""


@dataclass(frozen=True)
class Finished:
    """The trainer came to its own end, on all ranks.

    Args:
        report: what it returned, if that is a number or a dict of metrics.
        returned: what it returned otherwise, in words; empty for a generator.
    """

    trial: int
    report: Report | None = None
    returned: str = ""


@dataclass(frozen=True)
class Raised:
    """The trainer raised; `error` has every rank's traceback, grouped by equal text.

    `damaged`: it never began, as its checkpoint is not what was written.
    """

    trial: int
    error: str
    reason: str
    out_of_memory: bool = False
    damaged: bool = False


@dataclass(frozen=True)
class WorkerFailed:
    """A worker of the trial died or hung; its other ranks have been ended.

    Args:
        error: where the ranks hung, or what the cluster says of their end.
        store_unreachable: the trial never began, as its checkpoint's store did not answer.
        node_lost: the machine is gone, which is no fault of the trial's.
    """

    trial: int
    reason: str
    error: str = ""
    store_unreachable: bool = field(default=False, kw_only=True)
    node_lost: bool = field(default=False, kw_only=True)


Signal = Progress | Measured | Stopped | Finished | Raised | WorkerFailed


class Pool(Protocol):
    """Worker groups that run trials; all methods but `wake` are called from the study's thread."""

    realtime: bool  # False on a virtual clock, where nothing may happen beside the loop

    def busy(self) -> int:
        """How many groups hold a trial, or are still closing one."""
        ...

    def capacity(self) -> int:
        """How many trials can be started at once now, without waiting."""
        ...

    def next_hardware(self, comparable_to: Hardware | None = None) -> Hardware:
        """The hardware that a trial would get now; called only where there is capacity."""
        ...

    def start(self, launch: Launch) -> Hardware:
        """Start a trial on an idle group and return at once with what it runs on."""
        ...

    def resume(self, trial: int, change: Change | None, save: str | None) -> None:
        """Let a waiting trial train to its next milestone; save its present state into `save`."""
        ...

    def stop(self, trial: int, save: str | None) -> None:
        """Close a waiting trial on all ranks, saving its state into `save`; `Stopped` follows."""
        ...

    def wait(self, timeout: float | None) -> Signal | None:
        """The next signal; None after `timeout` seconds, `wake`, or a change of capacity."""
        ...

    def wake(self) -> None:
        """Make `wait` return; may be called from any thread or signal handler."""
        ...

    def now(self) -> float:
        """Seconds on this pool's clock, which never goes backwards."""
        ...

    def close(self) -> None:
        """End everything that runs, at once; closing again does nothing."""
        ...


@runtime_checkable
class Observed(Protocol):
    """A pool that can export figures to a monitoring system."""

    def observe(self, figures: Sequence[Figure]) -> None:
        """Export these figures from now on."""
        ...

    def endpoints(self) -> list[str]:
        """Addresses at which they can be read, as host:port."""
        ...


@runtime_checkable
class Measures(Protocol):
    """A pool whose ranks can measure the model that a waiting trial has trained."""

    def measure(self, trial: int) -> None:
        """Call `Milestone.measure` on all ranks of a waiting trial; `Measured` follows."""
        ...


@runtime_checkable
class KnowsMemory(Protocol):
    """A pool that knows how much memory its workers have."""

    def memory(self, comparable_to: Hardware | None = None) -> int | None:
        """Bytes for each rank of the next trial; called only where there is capacity.

        None where that is not known.
        """
        ...
