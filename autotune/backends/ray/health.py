"""Looks at a cluster beside the loop: which nodes there are, and whether its head answers.

It does not know Ray: how to look is told to it. What it finds goes to one inbox, like all else that
happens to a pool.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

EVERY_SECONDS = 1.0
HEAD_SECONDS = 20.0  # without an answer of the head; Ray ends this process, unasked, after 60
_REACH_SECONDS = 5.0
_WORKERS_REACH_SECONDS = 1.0  # for a node's own service to answer, when workers on it are gone


@dataclass(frozen=True)
class Node:
    """A node that is alive: where it answers, and what it has in all."""

    name: str
    host: str
    port: int
    resources: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Nodes:
    """The nodes are others than before."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class HeadLost:
    """The head has not answered for some seconds."""

    address: str
    seconds: float


class Watch:
    """Two threads that look at the nodes and at the head until it is closed.

    Args:
        look: says which nodes there are; may raise, or hang, where the head does not answer.
        head: the head's address, host:port.
        tell: takes what is found.
        known: the nodes that are known already.
    """

    def __init__(
        self,
        look: Callable[[], tuple[Node, ...]],
        head: str,
        tell: Callable[[Nodes | HeadLost], None],
        known: tuple[Node, ...],
    ) -> None:
        self._look, self._head, self._tell, self._known = look, head, tell, known
        self._over = threading.Event()
        for task in (self._watch_nodes, self._watch_head):
            threading.Thread(target=task, name=task.__name__, daemon=True).start()

    def close(self) -> None:
        """Look no more; nothing is told afterwards, but what is being told now."""
        self._over.set()

    def _watch_nodes(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            with contextlib.suppress(Exception):  # the head is away: the other thread tells
                found = self._look()
                if found != self._known and not self._over.is_set():
                    self._known = found
                    self._tell(Nodes(found))

    def _watch_head(self) -> None:
        host, _, port = self._head.rpartition(":")
        answered = time.monotonic()
        while not self._over.wait(EVERY_SECONDS):
            if answers(host, int(port), _REACH_SECONDS):
                answered = time.monotonic()
            silent = time.monotonic() - answered
            if silent > HEAD_SECONDS:
                self._tell(HeadLost(self._head, silent))
                return


def answers(host: str, port: int, seconds: float) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=seconds).close()
    except (OSError, OverflowError):
        return False
    return True


def unreachable(known: Iterable[Node], names: Iterable[str]) -> list[str]:
    """The names of these nodes, if nothing answers on any of them any more; else none.

    Ray tells of a worker at once, and of a node only after it has missed some heartbeats.
    """
    asked = sorted(names)
    found = [node for node in known if node.name in asked]
    return [] if any(answers(n.host, n.port, _WORKERS_REACH_SECONDS) for n in found) else asked
