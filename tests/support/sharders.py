"""Ranks of a gloo group, as many as wanted, that write and read sharded states; no Ray."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from heads import free_ports
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from autotune.backends.worker.checkpoint_io import Writer, restored

# Imported once, for all ranks to come: what is found without the path of these tests, which the
# server that forks the ranks does not have. The first sharded tensor imports `torch._dynamo`.
_ONCE = ["torch._dynamo", "autotune.backends.worker.resharding"]
SHAPES = {"even": (4, 6), "uneven": (5, 3), "tiny": (1, 2), "columns": (3, 7), "whole": (2, 2)}


def on_ranks(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(rank, ...)` gives on each rank; an error is its text."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_ONCE)
    (port,) = free_ports(1)
    answers: Any = context.Queue()
    ranks = [
        context.Process(target=_rank, args=(answers, rank, size, port, work, arguments))
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    try:
        found = dict(answers.get(timeout=900) for _ in ranks)
    finally:
        for rank in ranks:
            rank.join(timeout=600)
            rank.kill()
    return [found[rank] for rank in range(size)]


def _rank(answers: Any, rank: int, size: int, port: int, work: Any, arguments: Any) -> None:
    torch.set_num_threads(1)
    patience = timedelta(seconds=900)
    place = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", place, patience, world_size=size, rank=rank)
    try:
        answers.put((rank, work(rank, *arguments)))
    except Exception as error:
        answers.put((rank, f"{traceback.format_exc()}\n{type(error).__name__}: {error}"))
    finally:
        answers.close()
        answers.join_thread()
        dist.destroy_process_group()


def numbers(name: str) -> torch.Tensor:
    """All of a tensor, which every rank can tell."""
    shape = torch.Size(SHAPES[name])
    return torch.arange(shape.numel(), dtype=torch.float32).reshape(shape) + len(name)


def state(rank: int, mesh_shape: tuple[int, ...]) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", mesh_shape)
    inner = [Replicate()] * (len(mesh_shape) - 1)
    placed = {name: [*inner, Shard(0)] for name in SHAPES}
    placed |= {"columns": [*inner, Shard(1)], "whole": [*inner, Replicate()]}
    tensors = {n: distribute_tensor(numbers(n), mesh, p) for n, p in placed.items()}
    half = tensors["even"].to(torch.bfloat16)
    return {"step": 7, "rank": rank, "model": tensors, "more": [(half, {0: torch.ones(2)})]}


def written(rank: int, folder: str, mesh_shape: tuple[int, ...]) -> dict[str, Any]:
    """What this rank wrote, and what it gets back once all have."""
    writer = Writer(rank)
    writer.save(state(rank, mesh_shape), folder)
    done, unsaved = writer.taken()
    assert done is not None, unsaved
    dist.barrier()
    return {"sum": done.checksum, **read(rank, folder, ())}


def read(rank: int, folder: str, sums: tuple[str, ...]) -> dict[str, Any]:
    """What this rank gets, and how much of it is its own."""
    found = restored(folder, sums)
    values = {
        n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in found["model"].items()
    }
    half = found["more"][0][0]
    whole = half.full_tensor() if isinstance(half, DTensor) else half
    own = {n: list(v.to_local().shape) for n, v in found["model"].items() if isinstance(v, DTensor)}
    right = all(torch.equal(values[n], numbers(n)) for n in SHAPES)
    right &= whole.dtype == torch.bfloat16 and torch.equal(whole.float(), numbers("even"))
    return {"right": right, "own": own, "rank": found["rank"], "step": found["step"]}


def refused(rank: int, folder: str) -> str:
    """A state that could not be put together again."""
    from torch.distributed.tensor import Partial

    part = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (2,)), [Partial()])
    try:
        Writer(rank).save({"w": part}, folder)
    except TypeError as error:
        return str(error)
    return "taken"


def refused_or_read(rank: int, folder: str, grid: str) -> tuple[str, str]:
    """What two ranks get for a state that is no shard, and of a grid of four."""
    result = refused(rank, folder)
    try:
        restored(grid)
    except ValueError as error:
        return result, str(error)
    return result, "read"
