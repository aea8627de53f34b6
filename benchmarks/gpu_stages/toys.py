"""Trainers that do one thing each, run in the worker processes of the stages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.trial import Milestone
from trainers import image, language, retrieval
from trainers.data.stream import Batch, MemoryStream

KEPT: list[Any] = []
"""What `leaves_memory` and `leaves_a_thread` do not give back."""


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def by_name(config: dict[str, Any]) -> Iterator[Milestone]:
    """The trainer that `config["trainer"]` names, of `TRAINERS`."""
    chosen = TRAINERS[config["trainer"]]
    yield from chosen({k: v for k, v in config.items() if k != "trainer"})


def _milestones(
    work: Callable[[], object], metrics: Callable[[], dict[str, float]] = dict
) -> Iterator[Milestone]:
    """A first milestone, then `work` before each of the next ones."""
    step = 0
    while True:
        yield Milestone(step, metrics)
        work()
        step += 1


def settings(config: dict[str, Any]) -> Iterator[Milestone]:
    """Reports the global settings of precision, and changes them if `config` says so."""

    def change() -> None:
        if config.get("changes") and hasattr(torch.backends.cuda.matmul, "fp32_precision"):
            torch.backends.cuda.matmul.fp32_precision = "tf32"
            torch.backends.cudnn.conv.fp32_precision = "tf32"
            torch.backends.fp32_precision = "tf32"
        elif config.get("changes"):
            torch.backends.cuda.matmul.allow_tf32 = True

    def metrics() -> dict[str, float]:
        if config.get("changes"):  # torch's older functions raise after it
            return {}
        torch.manual_seed(0)
        a, b = (torch.randn(256, 256, device=device()) for _ in range(2))
        levels = {"highest": 0.0, "high": 1.0, "medium": 2.0}
        return {
            "product": float((a @ b).double().sum()),
            "products": levels[torch.get_float32_matmul_precision()],
            "tf32 in products": float(torch.backends.cuda.matmul.allow_tf32),
            "tf32 in convolutions": float(torch.backends.cudnn.allow_tf32),
        }

    return _milestones(change, metrics)


def leaves_memory(config: dict[str, Any]) -> Iterator[Milestone]:
    """Keeps `bytes` of memory of the device after its end."""
    return _milestones(lambda: KEPT.append(torch.zeros(config["bytes"] // 4, device=device())))


def leaves_a_thread(config: dict[str, Any]) -> Iterator[Milestone]:
    """Keeps a thread running after its end."""

    def begin() -> None:
        KEPT.append(threading.Thread(target=time.sleep, args=(600,), daemon=True))
        KEPT[-1].start()

    return _milestones(begin)


def allocated(config: dict[str, Any]) -> Iterator[Milestone]:
    """Reports the memory that the process has allocated on its device."""

    def metrics() -> dict[str, float]:
        gpu = torch.cuda.is_available()
        return {"bytes": float(torch.cuda.memory_allocated()) if gpu else 0.0}

    return _milestones(lambda: torch.zeros(1, device=device()), metrics)


def queues(config: dict[str, Any]) -> Iterator[Milestone]:
    """Queues `seconds` of work before each milestone, and as much to evaluate; on GPU `gpu`."""

    def work() -> None:
        if torch.cuda.is_available():
            with torch.cuda.device(config.get("gpu", 0)):
                torch.cuda._sleep(config["cycles"])
        else:
            time.sleep(config["seconds"])

    def metrics() -> dict[str, float]:
        work()
        return {"value": 0.0}

    return _milestones(work, metrics)


def needs_memory(config: dict[str, Any]) -> Iterator[Milestone]:
    """The image trainer, whose passes of more than `config["fits"]` images do not fit.

    On a GPU the allocation is real: as many bytes for each image as make the next one too many.
    """
    config = dict(config)
    fits = config.pop("fits")
    passed = config.get("microbatch") or config["batch_size"]

    def too_much() -> None:
        if torch.cuda.is_available():
            free, _ = torch.cuda.mem_get_info()
            each = int(0.9 * free / fits)
            taken: list[Tensor] = [
                torch.empty(each, dtype=torch.uint8, device="cuda") for _ in range(passed)
            ]
            taken.clear()
        elif passed > fits:
            raise torch.OutOfMemoryError("CUDA out of memory (stand-in)")

    trainer = image.train(config)
    yield next(trainer)
    too_much()
    yield from trainer


def warms_up_without_memory(config: dict[str, Any]) -> Iterator[Milestone]:
    """The image trainer, whose first batch on rank `config["full"]` finds the GPU full."""
    import torch.distributed as dist

    config = dict(config)
    if config.pop("full") != dist.get_rank():
        yield from image.train(config)
        return
    real = MemoryStream.warm

    def full(stream: MemoryStream, *step: int) -> Batch:
        if not torch.cuda.is_available():
            raise torch.OutOfMemoryError("CUDA out of memory (stand-in)")
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1e-4)
        return real(stream, *step)

    MemoryStream.warm = full  # type: ignore[method-assign]
    try:
        yield from image.train(config)
    finally:
        MemoryStream.warm = real  # type: ignore[method-assign]


def takes_memory(config: dict[str, Any]) -> Iterator[Milestone]:
    """Takes `config["share"]` of the GPU's whole memory, and gives it back."""

    def work() -> None:
        _, total = torch.cuda.mem_get_info()
        torch.empty(int(config["share"] * total), dtype=torch.uint8, device="cuda")

    return _milestones(work)


def sees(config: dict[str, Any]) -> Iterator[Milestone]:
    """Reports how many GPUs its process sees."""
    return _milestones(lambda: None, lambda: {"gpus": float(torch.cuda.device_count())})


def leaves_settings(config: dict[str, Any]) -> Iterator[Milestone]:
    """Reports settings of the GPU, and changes them all if `config` says so."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn

    def change() -> None:
        if not config.get("changes"):
            return
        cudnn.benchmark_limit = 3
        cudnn.deterministic = True
        cuda.enable_cudnn_sdp(False)  # type: ignore[no-untyped-call]
        if hasattr(cuda.matmul, "allow_fp16_accumulation"):
            cuda.matmul.allow_fp16_accumulation = True
        if torch.cuda.is_available():
            torch.cuda.set_stream(torch.cuda.Stream())
            torch.cuda.set_per_process_memory_fraction(0.1)

    def metrics() -> dict[str, float]:
        gpu = torch.cuda.is_available()
        streams = gpu and torch.cuda.current_stream() != torch.cuda.default_stream()
        share = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        return {
            "benchmark_limit": float(cudnn.benchmark_limit or 0),
            "deterministic": float(cudnn.deterministic),
            "cudnn_sdp": float(cuda.cudnn_sdp_enabled()),  # type: ignore[no-untyped-call]
            "accumulation": float(getattr(cuda.matmul, "allow_fp16_accumulation", False)),
            "stream": float(streams),
            "memory share": float(share()) if gpu and share is not None else 1.0,
        }

    return _milestones(change, metrics)


def reduces(config: dict[str, Any]) -> Iterator[Milestone]:
    """Sums a tensor over the ranks; rank `runs_out` has no memory for it."""
    found = torch.ones(4, device=device())

    def work() -> None:
        if config.get("runs_out") == dist.get_rank():
            raise torch.OutOfMemoryError("CUDA out of memory (stand-in)")
        found.fill_(1.0)
        dist.all_reduce(found)

    return _milestones(work, lambda: {"sum": float(found.sum())})


def placed(config: dict[str, Any]) -> Iterator[Milestone]:
    """The image trainer; its metrics say too on what it trains, summed over the ranks."""

    def metrics(milestone: Milestone) -> dict[str, float]:
        trains = torch.cuda.is_available() and torch.cuda.memory_allocated() > 0
        own = [1.0, float(torch.cuda.device_count()), float(trains)]
        sums = torch.tensor(own, device=device())
        dist.all_reduce(sums)
        names = ("ranks", "gpus_seen", "ranks_on_gpus")
        return {**milestone.evaluate(), **dict(zip(names, sums.tolist(), strict=True))}

    for milestone in image.train(config):
        yield replace(milestone, evaluate=partial(metrics, milestone))


class Large:
    """A state of so many bytes on the device."""

    def __init__(self, size: int) -> None:
        self.parts = [torch.rand(size // 4 // 16, device=device()) for _ in range(16)]

    def state(self) -> dict[str, Any]:
        return {"parts": list(self.parts)}

    def work(self) -> None:
        for part in self.parts:
            part.add_(1.0)


def large_state(config: dict[str, Any]) -> Iterator[Milestone]:
    """Holds a state of `config["bytes"]` bytes, which is new at each milestone."""
    large = Large(config["bytes"])
    if "state" in config:
        large.parts = [part.to(device()) for part in config["state"]["parts"]]
    step = config.get("step", 0)
    while True:
        yield Milestone(step, lambda: {"sum": float(large.parts[0].double().sum())}, large.state)
        large.work()
        step += 1


TRAINERS: dict[str, Callable[[dict[str, Any]], Iterator[Milestone]]] = {
    "image": image.train,
    "language": language.train,
    "retrieval": retrieval.train,
    "settings": settings,
    "leaves memory": leaves_memory,
    "leaves a thread": leaves_a_thread,
    "allocated": allocated,
    "queues": queues,
    "needs memory": needs_memory,
    "warms up without memory": warms_up_without_memory,
    "takes memory": takes_memory,
    "sees": sees,
    "leaves settings": leaves_settings,
    "reduces": reduces,
    "placed": placed,
    "large state": large_state,
}
