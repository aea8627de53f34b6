"""What all ranks' answers in one turn mean together."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from typing import Any

from autotune.backends.protocol import Broke, Progress, Raised
from autotune.backends.ray.group import Group
from autotune.backends.ray.health import HeadLost, Nodes
from autotune.backends.worker.diagnostics import is_here, stack_of
from autotune.backends.worker.messages import Place, Stretch
from autotune.storage import checkpoint_files
from autotune.trial import Checkpoint, Report, slowest


def progress(group: Group, answers: dict[int, Stretch]) -> Progress:
    """All ranks wait at a milestone: the slowest makes the report."""
    assert group.launch is not None
    saved, unsaved = checkpoint(group, answers)
    group.clock = group.clock + slowest([a.clock for a in answers.values()])
    first = answers[0]
    group.step = first.step
    seconds = group.clock.seconds(group.launch.clock)
    report = Report(first.step, seconds, first.metrics or {}, group.clock)
    can_save = all(a.can_save for a in answers.values())
    saving = group.saving is not None
    return Progress(group.launch.trial, report, can_save, saved, saving, unsaved)


def checkpoint(group: Group, answers: dict[int, Stretch]) -> tuple[Checkpoint | None, str]:
    """The checkpoint that was asked for once all ranks have written it, or why they cannot."""
    saving = group.saving
    if saving is None:
        return None, ""
    for rank, answer in answers.items():
        if answer.saved is not None and answer.saved.folder == saving.folder:
            saving.sums[rank] = answer.saved.checksum
    unsaved = next((a.unsaved for a in answers.values() if a.unsaved), "")
    ranks = range(len(group.places))
    if unsaved:
        group.saving = None
        return None, unsaved
    if len(saving.sums) < len(group.places):
        return None, ""
    group.saving = None
    try:
        found = {*checkpoint_files.names(saving.folder)}
    except OSError as error:
        return None, str(error)
    if not {f"rank-{rank}.pt" for rank in ranks} <= found:
        return None, ""  # written on another node's own disk
    sums = tuple(saving.sums[rank] for rank in ranks)
    return Checkpoint(saving.step, saving.folder, saving.clock, sums), ""


def raised(group: Group, answers: dict[int, Stretch]) -> Raised | Broke:
    """Some ranks raised: what, grouped by equal texts, and whether the trainer is at fault."""
    assert group.launch is not None
    bad = {r: a for r, a in answers.items() if a.kind == "raised"}
    first = next(iter(bad.values()))
    texts: dict[str, list[int]] = {}
    for rank, answer in bad.items():
        texts.setdefault(answer.error, []).append(rank)
    parts = [f"{_named(ranks)}:\n{text}" for text, ranks in texts.items()]
    silent = [r for r in range(len(group.places)) if r not in bad]
    if silent:
        parts.append(f"{_named(silent)}: raised nothing")
    memory = any(a.out_of_memory for a in bad.values())
    cause = (a.reason for a in bad.values() if a.out_of_memory or a.damaged)
    reason = next(cause, first.reason)
    trial = group.launch.trial
    damaged = any(a.damaged for a in bad.values())
    if any(a.unread for a in bad.values()) and not (memory or damaged):
        unread = next(a.reason for a in bad.values() if a.unread)
        return Broke(trial, unread, "\n\n".join(parts), unread=True)
    return Raised(trial, "\n\n".join(parts), reason, memory, damaged)


def disagreement(group: Group, answers: dict[int, Stretch]) -> Raised:
    """The ranks do not do the same."""
    assert group.launch is not None
    at = [f"rank {r} {a.kind} at step {a.step}" for r, a in answers.items()]
    trial = group.launch.trial
    text = f"the ranks are not at the same milestone: {', '.join(at)}"
    return Raised(trial, text, text)


def troubled(group: Group) -> bool:
    """Whether a rank has died or raised in this turn, so that the others may never answer."""
    wrong = (BaseException, Stretch)
    answers = [a for a in group.answers.values() if isinstance(a, wrong)]
    return any(isinstance(a, BaseException) or a.kind == "raised" for a in answers)


def stacks(group: Group, ranks: list[int]) -> str:
    """Where the ranks that run on this machine are stuck, innermost call first."""
    places = [(r, group.places[r]) for r in ranks]
    here = [(r, p) for r, p in places if is_here(p.stacks, p.node, p.pid)]
    return "\n".join(f"rank {r} is at:\n{stack_of(p)}" for r, p in here)


def name_of(group: Group, rank: int) -> str:
    """A rank, its process and its machine, for an error."""
    place = group.places[rank]
    return f"rank {rank} (pid {place.pid} on {place.host})"


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


_GRACE_SECONDS = 5.0  # for the other ranks to say what happened to them, once one has failed
_MEMORY_GRACE_SECONDS = 1.0  # where that is known: the others wait for it in a collective


@dataclass(frozen=True)
class Arrived:
    """What came into the inbox: rank `rank`'s answer number `turn` of group `group`."""

    group: int
    turn: int
    rank: int
    answer: Stretch | Place | BaseException | None


Inbox = queue.SimpleQueue[Arrived | Nodes | HeadLost | None]
"""Answers, news of the cluster, and None to wake who waits."""


def expect(inbox: Inbox, group: Group, refs: list[Any], seconds: float) -> None:
    """The group's next turn: an answer to each of its ranks' calls, within some seconds."""
    group.turn += 1
    group.answers.clear()
    group.deadline = time.monotonic() + seconds
    for rank, ref in enumerate(refs):
        _forward(inbox, ref, group.number, group.turn, rank)


def _forward(inbox: Inbox, ref: Any, group: int, turn: int, rank: int) -> None:
    def done(future: Any) -> None:
        error = future.exception()
        answer = error if error is not None else future.result()
        inbox.put(Arrived(group, turn, rank, answer))

    ref.future().add_done_callback(done)


def filed(group: Group, arrived: Arrived) -> bool:
    """File an answer; whether the group's turn is over."""
    if arrived.turn != group.turn:  # its processes have been replaced since
        return False
    group.answers[arrived.rank] = arrived.answer
    if len(group.answers) == len(group.actors):
        return True
    if troubled(group):
        full = isinstance(arrived.answer, Stretch) and arrived.answer.out_of_memory
        grace = _MEMORY_GRACE_SECONDS if full else _GRACE_SECONDS
        group.deadline = min(group.deadline, time.monotonic() + grace)
    return False
