"""What `autotune doctor` tries on GPUs: memory, a product, NCCL, and what slows them down."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from autotune.backends.worker.gpu_use import SLOWED

T = TypeVar("T")

_DEVICES = Path("/proc/driver/nvidia/gpus")  # has a folder for each GPU of this machine
_SIDE = 1024  # of the matrices that are multiplied
_BLOCK = 64 * 2**20  # bytes that are allocated
_NCCL_SECONDS = 120
_DRIVER_SECONDS = 10.0  # for the driver to answer
_FIELDS = "index,mig.mode.current,compute_mode,clocks_throttle_reasons.active"
_SET_LOWER = 0x2  # a bit of the last field: somebody has chosen the clocks, so times are steady


def try_gpus() -> str:
    """Allocate memory and multiply in bf16 on every GPU.

    Raises:
        RuntimeError: torch does not see the GPUs of this machine, or one of them does not work.
    """
    import torch

    there = len([*_DEVICES.glob("*")]) if _DEVICES.is_dir() else 0
    if not torch.cuda.is_available():
        fault = unseen(there, torch.version.cuda, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if fault:
            raise RuntimeError(f"torch {torch.__version__} {fault}")
        return "none (trials run on CPUs with gloo)"
    lines = _elsewhere(_try_each, torch.cuda.device_count())
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return f"{'; '.join(lines)}; CUDA {torch.version.cuda}, NCCL {nccl}"


def unseen(there: int, cuda: str | None, visible: str | None) -> str:
    """Why torch sees none of a machine's GPUs; empty where the machine has none.

    >>> unseen(1, None, None)
    'is built without CUDA, but this machine has 1 GPU: install a build with CUDA'
    >>> unseen(0, None, None)
    ''

    Args:
        there: GPUs that the driver of this machine lists.
        cuda: the version that torch is built for.
        visible: what CUDA_VISIBLE_DEVICES says.
    """
    if not there:
        return ""
    has = f"this machine has {there} GPU{'s' * (there > 1)}"
    if cuda is None:
        return f"is built without CUDA, but {has}: install a build with CUDA"
    if visible is not None:
        return f"sees no GPU, but {has}: CUDA_VISIBLE_DEVICES is {visible!r}"
    return f"sees no GPU, but {has}: its driver may be too old for CUDA {cuda}"


def _elsewhere(function: Callable[[int], T], number: int) -> T:
    """Call `function` in a process that then ends, and with it what it has on the GPUs.

    A GPU that takes one process only would have none for NCCL's otherwise.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, number).result()


def _try_each(count: int) -> list[str]:
    return [_try_gpu(device) for device in range(count)]


def _try_gpu(device: int) -> str:
    import torch

    name = torch.cuda.get_device_name(device)
    try:
        block = torch.ones(_BLOCK, dtype=torch.uint8, device=f"cuda:{device}")
        ones = torch.ones(_SIDE, _SIDE, dtype=torch.bfloat16, device=block.device)
        right = bool(((ones @ ones) == _SIDE).all()) and int(block.sum()) == _BLOCK
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        line = str(error).strip().partition("\n")[0]
        raise RuntimeError(f"GPU {device} ({name}): {line}") from None
    if not right:
        raise RuntimeError(f"GPU {device} ({name}): a product of ones in bf16 is wrong")
    return f"{device}: {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free, bf16 works"


# --- NCCL -----------------------------------------------------------------------------------------


def try_nccl(gpus: int) -> str:
    """Sum over all GPUs of this machine with NCCL, one process each.

    Raises:
        RuntimeError: it does not work; the first line of one process's error.
    """
    from torch.multiprocessing.spawn import start_processes

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = int(probe.getsockname()[1])
    try:
        start_processes(_reduce, args=(gpus, port), nprocs=gpus)  # type: ignore[no-untyped-call]
    except Exception as error:  # a process's traceback as text, whose last line is its error
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise RuntimeError(f"NCCL over {gpus} GPUs: {lines[-1] if lines else error!r}") from None
    return f"NCCL reduces over {gpus} GPU{'s' * (gpus > 1)}"


def _reduce(rank: int, gpus: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=gpus,
        timeout=timedelta(seconds=_NCCL_SECONDS),
    )
    ones = torch.ones(1, device=f"cuda:{rank}")
    dist.all_reduce(ones)
    found = ones.item()
    dist.destroy_process_group()
    if found != gpus:
        raise RuntimeError(f"the sum over {gpus} GPUs is {found:g}")


# --- what makes times unequal ---------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """What the driver says of all GPUs: what slows them, and what else one should know."""

    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def state() -> str:
    """Whether GPUs are slowed down, in slices (MIG) or served by another process (MPS).

    Raises:
        RuntimeError: one is slowed down, so that times on it are not comparable.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return "not known (no nvidia-smi)" if _DEVICES.is_dir() else "no GPUs"
    command = [program, f"--query-gpu={_FIELDS}", "--format=csv,noheader"]
    done = subprocess.run(  # noqa: S603 (the driver's own program, found on the path)
        command, capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=False
    )
    if done.returncode:
        return f"not known (nvidia-smi: {done.stdout.strip().partition(chr(10))[0]})"
    found = read_state(done.stdout, _serves_mps(os.environ.get("CUDA_MPS_PIPE_DIRECTORY")))
    if found.faults:
        raise RuntimeError("; ".join(found.faults))
    return "; ".join(found.notes) or "full clocks, no slices, no MPS"


def read_state(table: str, mps: bool) -> State:
    """The state of which the driver's program printed this table, a line for each GPU.

    >>> read_state("0, Enabled, Default, 0x0000000000000001", mps=False).notes
    ('GPU 0 is in slices (MIG): a slice counts as a GPU',)
    """
    faults, notes = list[str](), list[str]()
    for row in table.strip().splitlines():
        index, mig, mode, reasons = (cell.strip() for cell in row.split(","))
        bits = int(reasons, 16) if reasons.startswith("0x") else 0
        faults += [f"GPU {index}: {text}" for bit, text in SLOWED.items() if bits & bit]
        if bits & _SET_LOWER:
            notes.append(
                f"GPU {index}: its clocks are set lower (nvidia-smi --applications-clocks)"
            )
        if mig == "Enabled":
            notes.append(f"GPU {index} is in slices (MIG): a slice counts as a GPU")
        if mode == "Prohibited":
            faults.append(f"GPU {index}: its compute mode prohibits work on it")
        elif mode == "Exclusive_Process":
            notes.append(f"GPU {index} takes one process only: gpus_per_worker must be whole")
    if mps:
        notes.append("MPS serves the GPUs: an error of one process can end the others")
    return State(tuple(faults), tuple(notes))


def _serves_mps(folder: str | None) -> bool:
    """Whether the service that shares GPUs between processes has its control pipe there."""
    return (Path(folder or "/tmp/nvidia-mps") / "control").exists()  # noqa: S108 (NVIDIA's default)
