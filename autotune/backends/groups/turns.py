"""Turns of a worker group: all its ranks are called, and their answers become one signal.

The path of a report: on every rank `Rank.resume` returns an `Answer` (`worker/rank.py`,
`worker/messages.py`). The backend completes a future for each, which the pool takes from its inbox.
`take` files the answer with its group; once all are there, `signal` merges them into the `Progress`
that the study receives (`protocol.py`).
"""

from __future__ import annotations

import queue
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from autotune.backends.protocol import (
    Finished,
    Launch,
    Measured,
    Progress,
    Raised,
    Signal,
    Stopped,
    WorkerFailed,
)
from autotune.backends.worker.diagnostics import is_here, stack_of
from autotune.backends.worker.messages import Answer, Place
from autotune.storage import checkpoint_files
from autotune.trial import STEPS, Checkpoint, Clock, Hardware, Report, measured, slowest

_GRACE_SECONDS = 5.0  # for the other ranks to say what happened to them, once one has failed
_MEMORY_GRACE_SECONDS = 1.0  # where that is known: the others wait for it in a collective

Inbox = queue.SimpleQueue[Any]
"""Completed calls of ranks (futures), changes of a cluster, None to wake the thread that waits."""


class NodeOutOfMemory(Exception):  # noqa: N818  # of the cluster, and no fault of this program's
    """A worker was ended as its node was running out of memory."""


@dataclass
class PendingCheckpoint:
    """A checkpoint that is being written: the checksums of its ranks' files, as they come in."""

    folder: str
    step: int
    clock: Clock
    sums: dict[int, str] = field(default_factory=dict)


@dataclass
class Group:
    """A worker group as its pool keeps it: its processes, its trial, and the turn it is in.

    `state` is `starting`, `idle`, `running` or `closing`. Of the turn, `unanswered` are the calls
    that have not completed, by rank; `answers` what the others returned, and `failed` what was
    raised in place of an answer, as the process is gone.
    """

    number: int
    placement: Any
    strategy: str
    actors: list[Any] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    hardware: Hardware = Hardware()
    state: str = "starting"
    port: int = 0
    failed_starts: int = 0
    launch: Launch | None = None
    clock: Clock = Clock()
    waited: float = 0.0
    step: int = 0
    checkpoint: PendingCheckpoint | None = None
    unanswered: dict[Future[Any], int] = field(default_factory=dict)
    answers: dict[int, Answer | Place | int | None] = field(default_factory=dict)
    failed: dict[int, BaseException] = field(default_factory=dict)
    turn_seconds: float = float("inf")
    deadline: float = float("inf")


# --- the course of a turn -------------------------------------------------------------------------


def begin(inbox: Inbox, group: Group, calls: list[Future[Any]], seconds: float) -> None:
    """Begin a turn: the calls of all ranks, in their order, to be answered within some seconds."""
    abandon(group)
    group.turn_seconds, group.deadline = seconds, time.monotonic() + seconds
    for rank, call in enumerate(calls):
        group.unanswered[call] = rank
    for future in [*group.unanswered]:
        future.add_done_callback(inbox.put)


def abandon(group: Group) -> None:
    """End a turn whose answers do not matter any more; those that still arrive are dropped."""
    group.unanswered, group.answers, group.failed = {}, {}, {}
    group.deadline = float("inf")


def take(group: Group, call: Future[Any]) -> bool:
    """File the result of one of the group's calls; whether all ranks have answered."""
    rank, error = group.unanswered.pop(call), call.exception()
    if error is not None:
        group.failed[rank] = error
    else:
        group.answers[rank] = call.result()
    if group.unanswered and (group.failed or _raised_on(group)):
        answer = group.answers.get(rank)
        full = isinstance(answer, Answer) and answer.out_of_memory
        grace = _MEMORY_GRACE_SECONDS if full else _GRACE_SECONDS
        group.deadline = min(group.deadline, time.monotonic() + grace)
    return not group.unanswered


# --- what a turn means ----------------------------------------------------------------------------


def signal(group: Group, lost_nodes: list[str]) -> Signal:
    """Merge a turn of a trial into one signal, when all have answered or time is up.

    If workers fail while the trial is being stopped, it is stopped all the same.
    """
    assert group.launch is not None
    trial, answers = group.launch.trial, trial_answers(group)
    closing, raised = group.state == "closing", _raised_on(group)
    if group.failed or (group.unanswered and not raised):
        failure = _died(group, lost_nodes) if group.failed else _hung(group)
        return Stopped(trial) if closing else failure
    if closing:
        return Stopped(trial, *_checkpoint(group, answers))
    if raised:
        return _raised(group, answers)
    if len({(a.kind, a.step) for a in answers.values()}) > 1:
        return _disagreement(trial, answers)
    if answers[0].kind == "measured":
        return Measured(trial, answers[0].metrics or {})
    return (_finished if answers[0].kind == "finished" else _progress)(group, answers)


def trial_answers(group: Group) -> dict[int, Answer]:
    """The answers of ranks that run a trial, in the order of the ranks."""
    return {r: a for r, a in sorted(group.answers.items()) if isinstance(a, Answer)}


def nodes_of_failed(group: Group) -> set[str]:
    """The nodes on which workers died, unless they were ended for their memory."""
    if any(isinstance(error, NodeOutOfMemory) for error in [*group.failed.values()][:1]):
        return set()
    return {group.places[rank].node for rank in group.failed}


def _progress(group: Group, answers: dict[int, Answer]) -> Progress:
    """All ranks are at a milestone: rank 0's metrics, the slowest rank's time."""
    assert group.launch is not None
    saved, save_error = _checkpoint(group, answers)
    pending = group.checkpoint is not None
    if any(a.metrics is None for a in answers.values()):  # they come at the next milestone
        return Progress(group.launch.trial, None, False, saved, pending, save_error)
    report = _report(group, group.launch, answers)
    can_save = all(a.can_save for a in answers.values())
    return Progress(group.launch.trial, report, can_save, saved, pending, save_error)


def _finished(group: Group, answers: dict[int, Answer]) -> Finished:
    """The trainer has ended on all ranks; what it returned on rank 0 is the last report."""
    assert group.launch is not None
    if answers[0].metrics is None:
        return Finished(group.launch.trial, None, answers[0].returned)
    return Finished(group.launch.trial, _report(group, group.launch, answers))


def _report(group: Group, launch: Launch, answers: dict[int, Answer]) -> Report:
    first = answers[0]
    group.clock = group.clock + slowest([a.clock for a in answers.values()])
    group.step = first.step
    seconds = measured(launch.clock, first.step, group.clock)
    waits = [answer.wait for answer in answers.values() if answer.wait is not None]
    longest = group.waited + max((wait.seconds for wait in waits), default=0.0)
    group.waited = round(min(longest, group.clock.seconds("train")), 4)
    known = launch.clock != STEPS and (waits or group.waited)
    slowed_by = "; ".join(sorted({wait.by for wait in waits if wait.by}))
    waited = group.waited if known else None
    metrics = first.metrics or {}
    return Report(first.step, seconds, metrics, group.clock, waited, slowed_by, first.ahead)


def _checkpoint(group: Group, answers: dict[int, Answer]) -> tuple[Checkpoint | None, str]:
    """The checkpoint that was asked for once all ranks have written it, or why they cannot."""
    pending = group.checkpoint
    if pending is None:
        return None, ""
    for rank, answer in answers.items():
        if answer.saved is not None and answer.saved.folder == pending.folder:
            pending.sums[rank] = answer.saved.checksum
    save_error = next((a.save_error for a in answers.values() if a.save_error), "")
    ranks = range(len(group.places))
    if save_error:
        group.checkpoint = None
        return None, save_error
    if len(pending.sums) < len(group.places):
        return None, ""
    group.checkpoint = None
    try:
        names = {*checkpoint_files.names(pending.folder)}
    except OSError as error:
        return None, str(error)
    if not {f"rank-{rank}.pt" for rank in ranks} <= names:  # they are on another node's own disk
        root = checkpoint_files.root_of(pending.folder)  # of all: it is said once
        share = "give checkpoint_folder a folder that all nodes share, or a URL"
        return None, f"the driver does not see what workers wrote to {root}: {share}"
    sums = tuple(pending.sums[rank] for rank in ranks)
    return Checkpoint(pending.step, pending.folder, pending.clock, sums), ""


def _raised_on(group: Group) -> list[int]:
    """The ranks whose trainer raised."""
    return [rank for rank, answer in trial_answers(group).items() if answer.kind == "raised"]


def _raised(group: Group, answers: dict[int, Answer]) -> Raised | WorkerFailed:
    """Some ranks raised: their errors, grouped by equal text, and whether the trainer caused them.

    A reason that explains the others comes first: that memory ran out, or a damaged checkpoint.
    """
    assert group.launch is not None
    bad = {r: a for r, a in answers.items() if a.kind == "raised"}
    first = next(iter(bad.values()))
    texts: dict[str, list[int]] = {}
    for rank, answer in bad.items():
        texts.setdefault(answer.error, []).append(rank)
    parts = [f"{_listed(ranks)}:\n{text}" for text, ranks in texts.items()]
    others = [r for r in range(len(group.places)) if r not in bad]
    if others:
        parts.append(f"{_listed(others)}: raised nothing")
    memory = any(a.out_of_memory for a in bad.values())
    cause = (a.reason for a in bad.values() if a.out_of_memory or a.damaged)
    reason = next(cause, first.reason)
    trial = group.launch.trial
    damaged = any(a.damaged for a in bad.values())
    if any(a.crowded for a in bad.values()):  # not what the trial needs: it is tried again
        beside = f"{reason}: others hold more of the GPU than is theirs"
        return WorkerFailed(trial, beside, "\n\n".join(parts))
    if any(a.helper_died for a in bad.values()):
        return WorkerFailed(trial, reason, "\n\n".join(parts))
    away = [a.reason for a in bad.values() if a.store_unreachable]
    if away and not (memory or damaged):
        return WorkerFailed(trial, away[0], "\n\n".join(parts), store_unreachable=True)
    return Raised(trial, "\n\n".join(parts), reason, memory, damaged)


def _disagreement(trial: int, answers: dict[int, Answer]) -> Raised:
    """The ranks are not at the same point of the trainer."""
    at = [f"rank {r} {a.kind} at step {a.step}" for r, a in answers.items()]
    text = f"the ranks are not at the same milestone: {', '.join(at)}"
    return Raised(trial, text, text)


def _died(group: Group, lost_nodes: list[str]) -> Raised | WorkerFailed:
    """Processes are gone: what the cluster says of it, and whether memory was the reason."""
    assert group.launch is not None
    trial, names = group.launch.trial, _names(group, sorted(group.failed))
    first = next(iter(group.failed.values()))
    error = str(first).strip()
    if isinstance(first, NodeOutOfMemory):
        reason = f"killed by Ray, as its node was running out of memory: {names}"
        if group.hardware.gpus_per_worker:  # where a microbatch fills the GPU's, not the node's
            return WorkerFailed(trial, reason, error)
        return Raised(trial, error, reason, out_of_memory=True)
    what = "node lost" if lost_nodes else "worker died"
    return WorkerFailed(trial, f"{what}: {names}", error, node_lost=bool(lost_nodes))


def _hung(group: Group) -> WorkerFailed:
    """Ranks have not answered in time, and none has failed: where they are stuck."""
    assert group.launch is not None
    ranks = sorted(group.unanswered.values())
    names = _names(group, ranks)
    limit = f"{group.turn_seconds:g} s (hang_timeout)"
    reason = f"worker hung: {names}: reached no milestone within {limit}"
    return WorkerFailed(group.launch.trial, reason, _stacks(group, ranks))


def _stacks(group: Group, ranks: list[int]) -> str:
    """Where the ranks that run on this machine are stuck, innermost call first."""
    places = [(r, group.places[r]) for r in ranks]
    here = [(r, p) for r, p in places if is_here(p.stacks, p.node, p.pid)]
    return "\n".join(f"rank {r} is at:\n{stack_of(p)}" for r, p in here)


def _names(group: Group, ranks: list[int]) -> str:
    """Ranks with their processes and machines, for an error."""
    places = [(rank, group.places[rank]) for rank in ranks]
    return ", ".join(f"rank {rank} (pid {place.pid} on {place.host})" for rank, place in places)


def _listed(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
