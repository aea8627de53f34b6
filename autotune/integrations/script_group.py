"""The ranks that run a script, and a port at which those of the script can meet."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Group:
    """This rank, of `size`, and torch's module with their process group; None without one."""

    dist: Any
    rank: int = 0
    size: int = 1

    def from_first(self, make: Callable[[], _T]) -> _T:
        """What `make` returns on rank 0, on all ranks."""
        if self.size == 1:
            return make()
        import torch

        made: list[Any] = [make() if self.rank == 0 else None]
        self.dist.broadcast_object_list(made, src=0, device=torch.device("cpu"))
        found: _T = made[0]
        return found


def ranks() -> Group:
    """The ranks of the process group; this process alone without one."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return Group(None)
    return Group(dist, dist.get_rank(), dist.get_world_size())


def free_port(group: Group) -> int:
    """A port that is free on rank 0's machine, the same on all ranks.

    A process group of the script's cannot use MASTER_PORT as it is: the ranks' own store has it.
    """

    def free() -> int:
        with socket.socket() as made:
            made.bind(("", 0))
            return int(made.getsockname()[1])

    return group.from_first(free)
