"""Health of the cluster, watched beside the loop: its nodes, and whether its head answers.

It does not import Ray: a function that lists the nodes is passed in. Changes go to the pool's
inbox, where its workers' answers arrive as well.
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
_CONNECT_SECONDS = 5.0
_NODE_CONNECT_SECONDS = 1.0  # for a node's own service to answer, when workers on it are gone


@dataclass(frozen=True)
class Node:
    """A node that is alive: its address, and its resources in total."""

    name: str
    host: str
    port: int
    resources: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Nodes:
    """The nodes have changed."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class HeadLost:
    """The head has not answered for some seconds."""

    address: str
    seconds: float


class Watch:
    """Two threads that watch the nodes and the head until it is closed.

    Args:
        list_nodes: returns the nodes that are alive; may raise, or hang, if the head is away.
        head: the head's address, host:port.
        notify: takes each change.
        known: the nodes that are known already.
    """

    def __init__(
        self,
        list_nodes: Callable[[], tuple[Node, ...]],
        head: str,
        notify: Callable[[Nodes | HeadLost], None],
        known: tuple[Node, ...],
    ) -> None:
        self._list_nodes, self._head, self._notify, self._known = list_nodes, head, notify, known
        self._over = threading.Event()
        for task in (self._watch_nodes, self._watch_head):
            threading.Thread(target=task, name=task.__name__, daemon=True).start()

    def close(self) -> None:
        """End the watch; a change that is being notified at this moment may still arrive."""
        self._over.set()

    def _watch_nodes(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            with contextlib.suppress(Exception):  # the head is away: the other thread says so
                found = self._list_nodes()
                if found != self._known and not self._over.is_set():
                    self._known = found
                    self._notify(Nodes(found))

    def _watch_head(self) -> None:
        host, _, port = self._head.rpartition(":")
        answered = time.monotonic()
        while not self._over.wait(EVERY_SECONDS):
            if is_listening(host, int(port), _CONNECT_SECONDS):
                answered = time.monotonic()
            silent = time.monotonic() - answered
            if silent > HEAD_SECONDS:
                self._notify(HeadLost(self._head, silent))
                return


def is_listening(host: str, port: int, seconds: float) -> bool:
    """Whether a process accepts connections there."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=seconds).close()
    except (OSError, OverflowError):
        return False
    return True


def unreachable(known: Iterable[Node], names: Iterable[str]) -> list[str]:
    """The names of these nodes if none of them can be reached, else an empty list.

    Ray reports a lost worker at once, and a lost node only after some heartbeats are missing.
    """
    wanted = sorted(names)
    nodes = [node for node in known if node.name in wanted]
    reached = any(is_listening(n.host, n.port, _NODE_CONNECT_SECONDS) for n in nodes)
    return [] if reached else wanted
