"""Where trials run: the protocol between the study and whatever trains.

A pool runs trials from milestone to milestone. At each one all ranks of the trial wait until the
study answers `resume` or `stop`; so every rank acts on one decision. A pool knows nothing of
targets, samplers or pruners, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from autotune.backends.monitoring import Figure
from autotune.trial import Change, Checkpoint, Clock, Config, Hardware, Report


@dataclass(frozen=True)
class Launch:
    """A trial on its way to a worker group; `checkpoint` is where it goes on from.

    `microbatch`, if given, is told to the trainer as `config["microbatch"]`. Of several idle groups
    it takes one on hardware `like` that which is given.
    """

    trial: int
    config: Config
    seed: int
    clock: str = "train"
    checkpoint: Checkpoint | None = None
    base: Clock = field(default_factory=Clock)
    microbatch: int | None = None
    like: Hardware | None = None


@dataclass(frozen=True)
class Progress:
    """All ranks wait at a milestone.

    `saved` is a checkpoint that has been asked for and that all ranks have written since;
    `saving`: one is still being written; `unsaved` says why one could not be.
    """

    trial: int
    report: Report
    can_save: bool = False
    saved: Checkpoint | None = None
    saving: bool = False
    unsaved: str = ""


@dataclass(frozen=True)
class Stopped:
    """The trial was stopped as asked; its checkpoint, if one was asked for and could be made."""

    trial: int
    saved: Checkpoint | None = None


@dataclass(frozen=True)
class Finished:
    """The trainer came to its own end, on all ranks."""

    trial: int


@dataclass(frozen=True)
class Raised:
    """The trainer raised; `error` has every rank's traceback, grouped by equal text.

    `damaged`: it never began, as its checkpoint could not be read.
    """

    trial: int
    error: str
    reason: str
    out_of_memory: bool = False
    damaged: bool = False


@dataclass(frozen=True)
class Broke:
    """A worker of the trial died or hung; its other ranks have been ended.

    `error` says where the ranks hung. `unread`: the store of the trial's checkpoint gave no answer,
    so that it never began; `node_lost`: the machine is gone, which is no fault of the trial's.
    """

    trial: int
    reason: str
    error: str = ""
    unread: bool = field(default=False, kw_only=True)
    node_lost: bool = field(default=False, kw_only=True)


Signal = Progress | Stopped | Finished | Raised | Broke


class Pool(Protocol):
    """Worker groups that run trials. All methods are called from the study's thread, but `wake`."""

    realtime: bool  # False on a virtual clock, where nothing may happen beside the loop

    def busy(self) -> int:
        """How many groups hold a trial, or are still closing one."""
        ...

    def capacity(self) -> int:
        """How many trials can be started at once now, without waiting."""
        ...

    def next_hardware(self, like: Hardware | None = None) -> Hardware:
        """What a trial `like` that will run on if started now; asked only where there is room."""
        ...

    def start(self, launch: Launch) -> Hardware:
        """Start a trial on an idle group and return at once with what it runs on."""
        ...

    def resume(self, trial: int, change: Change | None, save: str | None) -> None:
        """Let a waiting trial go on to its next milestone; save its state as it is now if asked."""
        ...

    def stop(self, trial: int, save: str | None) -> None:
        """Close a waiting trial on all ranks; `Stopped` follows."""
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
    """A pool that can show figures to a monitoring system."""

    def observe(self, figures: Sequence[Figure]) -> None:
        """Show these figures from now on."""
        ...

    def endpoints(self) -> list[str]:
        """Where they can be read, as host:port."""
        ...
