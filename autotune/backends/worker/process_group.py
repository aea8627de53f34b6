"""How the ranks of a group reach each other: their store, each device's backend, torch's group.

Torch is imported when the group is opened, and not before.
"""

from __future__ import annotations

import math
import os
import socket
import sys
from datetime import timedelta
from typing import Any

_EXTRA_SECONDS = 60  # the pool ends a group that hangs, and says where, before a collective does


class ProcessGroup:
    """The process group of a rank, which is opened again where a trial has closed it.

    Args:
        rank, world_size: this process's place in it.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._listening: socket.socket | None = None
        self._store: Any = None
        self._number = 0
        self._gpus = 0.0
        self._seconds = 0.0
        self._at = ("", 0)

    def serve(self, host: str) -> int:
        """Open, on rank 0, the port at which the group meets; other ranks return 0.

        It listens at `host` only; by default torch would on every interface.
        """
        if self._rank:
            return 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family)
        port = int(self._listening.getsockname()[1])
        if self._world_size > 1:  # the others connect at once
            self._open_store(host, port)
        return port

    def meet(self, host: str, port: int, gpus: float, seconds: float) -> None:
        """Set where the ranks meet, the GPUs of each, and the seconds that a hung rank has."""
        set_environment(self._rank, self._world_size, host, port, seconds)
        self._at, self._gpus, self._seconds = (host, port), gpus, seconds

    def open(self) -> None:
        """Open the group, all of whose ranks do so together."""
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        if dist.is_initialized():  # by whoever has started this process
            return
        if self._store is None:
            self._open_store(*self._at)
        self._number += 1
        dist.init_process_group(
            backend(torch.cuda.is_available(), self._gpus),
            store=PrefixStore(f"group-{self._number}", self._store),
            rank=self._rank,
            world_size=self._world_size,
            timeout=timedelta(seconds=self._seconds + _EXTRA_SECONDS),
        )

    def put_back(self) -> None:
        """Open the group again if a trial has closed it, or opened groups of its own."""
        dist: Any = sys.modules.get("torch.distributed")
        if not self._number or dist is None:
            return
        groups = len(dist.distributed_c10d._world.pg_map) if dist.is_initialized() else 0
        if groups != 1:
            if groups:
                dist.destroy_process_group()
            self.open()

    def close(self) -> None:
        """Leave the group, in a process that lives on."""
        dist: Any = sys.modules.get("torch.distributed")
        if self._number and dist is not None and dist.is_initialized():
            dist.destroy_process_group()
        if self._listening is not None:
            self._listening.close()
        self._store = None

    def _open_store(self, host: str, port: int) -> None:
        from torch._C._distributed_c10d import TCPStore

        if self._listening is None:
            self._store = TCPStore(host, port, self._world_size, is_master=False)
            return
        self._store = TCPStore(
            host,
            port,
            self._world_size,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self._listening.detach(),
        )
        self._listening = None


def backend(cuda: bool, gpus: float) -> str:
    """The backends for a rank with `gpus` GPUs, on a machine with CUDA or without.

    Ranks that share a GPU reduce its tensors with gloo, as NCCL refuses two ranks on a device. That
    is said, as for `gloo` alone some versions of torch take NCCL for further groups.

    >>> backend(False, 0), backend(True, 0.5), backend(True, 1)
    ('gloo', 'cpu:gloo,cuda:gloo', 'cpu:gloo,cuda:nccl')
    """
    if not cuda:
        return "gloo"
    return "cpu:gloo,cuda:nccl" if gpus >= 1 else "cpu:gloo,cuda:gloo"


def set_environment(rank: int, world_size: int, host: str, port: int, seconds: float) -> None:
    """Set what torch and trainers read of the group, a rank of which is hung after `seconds`.

    NCCL's own watchdog ends a process that makes no progress for some minutes, whatever the time
    that collectives have; it gets longer than they do, unless the environment says.
    """
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK="0",
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )
    heartbeat = str(math.ceil(seconds) + 2 * _EXTRA_SECONDS)
    os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", heartbeat)
