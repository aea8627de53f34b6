"""How the ranks of a group reach each other: the backend of each device, and the environment."""

from __future__ import annotations

import math
import os

_NCCL_EXTRA_SECONDS = 60  # the pool ends a group that hangs, and says where, before NCCL does


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
    """Set what torch and trainers read of the group, whose collectives take `seconds` at most.

    NCCL's own watchdog ends a process that makes no progress for some minutes, whatever the time
    that collectives have; it gets as long as they do, and more, unless the environment says.
    """
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK="0",
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )
    heartbeat = str(math.ceil(seconds) + _NCCL_EXTRA_SECONDS)
    os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", heartbeat)
