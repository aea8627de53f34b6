"""What a worker process says to its pool, and what it is told before it is one of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.backends.worker.checkpoint_io import Written
from autotune.backends.worker.hardware_probe import Machine
from autotune.trial import Clock


@dataclass(frozen=True)
class Stretch:
    """What one rank did between two answers of the driver.

    `kind` is `milestone`, `finished`, `stopped` or `raised`; `saved` is what has been written
    meanwhile of the state that was asked for, and `unsaved` why it could not be; `damaged` that the
    checkpoint to go on from is not what was written, `unread` that it could not be reached; `worn`
    says why the process should not be used for another trial.
    """

    kind: str
    step: int = 0
    metrics: Mapping[str, float] | None = None
    clock: Clock = Clock()
    can_save: bool = False
    saved: Written | None = None
    unsaved: str = ""
    error: str = ""
    reason: str = ""
    out_of_memory: bool = False
    damaged: bool = False
    unread: bool = False
    worn: str = ""


@dataclass(frozen=True)
class Place:
    """Where a worker process runs, and the file of its own into which it writes its stacks."""

    node: str
    host: str
    pid: int
    cores: tuple[int, ...]
    machine: Machine
    stacks: str


@dataclass(frozen=True)
class Meeting:
    """What all ranks of a group agree on when they become one.

    Ranks that share a GPU (`whole_gpus` is False) reduce with gloo: NCCL refuses two on a device.
    Those of one node meet on its loopback interface (`one_node`).
    """

    own_cores: bool
    whole_gpus: bool
    timeout_seconds: float
    one_node: bool = True
