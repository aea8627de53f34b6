"""Turns: every rank of a group is asked, and every rank's answer arrives in one inbox.

What else happens to a pool arrives there too, so that the study's loop sleeps until something does.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from typing import Any

from autotune.pools import turns
from autotune.pools.answers import Place, Stretch
from autotune.pools.groups import Group
from autotune.pools.watch import HeadLost, Nodes

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
    if turns.troubled(group):
        full = isinstance(arrived.answer, Stretch) and arrived.answer.out_of_memory
        grace = _MEMORY_GRACE_SECONDS if full else _GRACE_SECONDS
        group.deadline = min(group.deadline, time.monotonic() + grace)
    return False
