"""Messages of a worker process to its pool, and of the pool to the ranks of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.backends.worker.cpu_wait import Wait
from autotune.backends.worker.hardware_probe import Machine
from autotune.trial import Clock

Kind = Literal["milestone", "measured", "finished", "stopped", "raised"]


@dataclass(frozen=True)
class Written:
    """One rank's part of the checkpoint in `folder`: complete, and with its checksum."""

    folder: str
    checksum: str


@dataclass(frozen=True)
class Answer:
    """One rank's answer to a call: how the trainer went on, and how long each part took.

    Args:
        kind: what the rank's generator did: it is at a milestone, where it may have measured its
            model, or at an end of one of three kinds.
        step, metrics: the milestone's, or those of what a function returned at its end (or None).
            At a milestone None says that there is nothing to report yet (`beside`).
        clock: seconds since the previous answer; of a report that came later, since the milestone
            before its own.
        can_save: whether the milestone has a state to save.
        wait: how long training waited for what other processes used; None if it is not measured.
        saved: this rank's part of the checkpoint that was last asked for, once it is written.
        save_error: why it could not be written, or an empty string.
        error, reason: the traceback of what the trainer raised, and its last line.
        out_of_memory: whether it raised because memory ran out.
        crowded: whether it did as others hold more of a shared GPU than is theirs.
        damaged: whether it raised because the checkpoint to start from is not what was written.
        store_unreachable: whether that checkpoint's store could not be reached.
        must_restart: why the process cannot run another trial, or an empty string.
        returned: what a function returned at its end, in words, if that is no report.
        ahead: the step at which the rank is, where the report is that of an earlier milestone.
        helper_died: whether it raised because a process died that evaluated for it.
    """

    kind: Kind
    step: int = 0
    metrics: Mapping[str, float] | None = None
    clock: Clock = Clock()
    can_save: bool = False
    wait: Wait | None = None
    saved: Written | None = None
    save_error: str = ""
    error: str = ""
    reason: str = ""
    out_of_memory: bool = False
    crowded: bool = False
    damaged: bool = False
    store_unreachable: bool = False
    must_restart: str = ""
    returned: str = ""
    ahead: int | None = None
    helper_died: bool = False


@dataclass(frozen=True)
class Place:
    """Where a worker process runs, and the path at which its stacks can be read."""

    node: str
    host: str
    pid: int
    cores: tuple[int, ...]
    machine: Machine
    stacks: str


@dataclass(frozen=True)
class Rendezvous:
    """Settings on which all ranks of a group agree when they join its process group.

    Ranks that share a GPU (`gpus`, of each rank, is below 1) reduce with gloo: NCCL refuses two on
    a device. Ranks on one node communicate over its loopback interface (`one_node`).
    """

    own_cores: bool
    gpus: float
    timeout_seconds: float
    one_node: bool = True
