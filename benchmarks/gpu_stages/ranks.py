"""Warm worker processes without Ray: starts, settings, memory, the clock, checkpoints."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autotune.backends.worker.gpu_memory import share_of
from autotune.backends.worker.messages import Answer
from gpu_stages.findings import Finding, Run, checked, measured, not_run, seconds_of
from gpu_stages.processes import Group, group
from gpu_stages.toys import by_name

START_SECONDS = 0.5
MEMORY_SECONDS = 3.0
QUEUED_SECONDS = 0.2
OTHERS_SHARE = 0.65  # of a GPU's memory: more than a half, and less than a half is left


def _config(run: Run, **more: Any) -> dict[str, Any]:
    return {
        "trainer": "image",
        "data": "synthetic",
        "train_size": run.pick(4096, 64),
        "val_size": run.pick(512, 16),
        "image_size": run.pick(32, 8),
        "model": "resnet8",
        "width": run.pick(16, 4),
        "batch_size": run.pick(128, 16),
        "lr": 0.05,
        "precision": "bf16" if run.on_gpu else "fp32",
        **more,
    }


def _trial(ranks: Group, config: dict[str, Any], milestones: int = 1) -> tuple[float, list[Answer]]:
    """Run a trial of so many milestones: seconds to its first one, and all answers of rank 0."""
    answers = [ranks.start(config)[0]]
    took = ranks.took
    for _ in range(milestones):
        if answers[-1].kind == "milestone":
            answers.append(ranks("resume", None, None)[0])
    if answers[-1].kind == "milestone":
        answers.append(ranks("stop", None)[0])
    return took, answers


def _why(answers: list[Answer]) -> str:
    """Why a trial did not end as it should, or an empty text."""
    raised = [a.error for a in answers if a.kind == "raised"]
    return raised[0][-500:] if raised else answers[-1].must_restart


def warm_starts(run: Run) -> Iterator[Finding]:
    """Trials one after another in one process; compiled ones too."""
    with group(by_name, 1, run.gpus) as ranks:
        took, answers = _trial(ranks, _config(run))
        yield checked("the first trial ends well", not _why(answers), _why(answers))
        yield measured("its start, cold", took, "s")
        seconds, faults = [], []
        for _ in range(5):
            took, answers = _trial(ranks, _config(run))
            seconds.append(took)
            faults.append(_why(answers))
        yield checked("starts 1 to 5 keep the process", not any(faults), max(faults))
        yield run.at_most("the slowest of starts 1 to 5", max(seconds), START_SECONDS, "s")
        if run.left > run.pick(45, 20):
            yield from _compiled(run, ranks)
        else:
            yield not_run("a compiled model twice", f"no time: {run.left:.0f} s are left")


def _compiled(run: Run, ranks: Group) -> Iterator[Finding]:
    for number in ("first", "second"):
        model = {"model": "mlp"} if run.tiny else {}
        took, answers = _trial(ranks, _config(run, compile=True, **model))
        why = _why(answers)
        yield checked(f"the {number} compiled trial keeps the process", not why, why)
        yield measured(f"its start, the {number} time", took, "s")
        if answers[-1].kind == "raised":
            return


def settings_put_back(run: Run) -> Iterator[Finding]:
    """A trial's settings, memory and threads are not the next one's."""
    yield from _memory_is_waited_for(run)
    with group(by_name, 1, run.gpus) as ranks:
        yield from _tf32(ranks)
    with group(by_name, 1, run.gpus) as ranks:
        yield from _deterministic(run, ranks)
        _, before = _trial(ranks, {"trainer": "leaves settings"})
        _, _ = _trial(ranks, {"trainer": "leaves settings", "changes": True})
        _, after = _trial(ranks, {"trainer": "leaves settings"})
        text = f"{after[1].metrics} after {before[1].metrics}"
        yield checked(
            "settings of the GPU are put back", after[1].metrics == before[1].metrics, text
        )
        yield from _memory_is_freed(run, ranks)
        kind = "leaves memory" if run.on_gpu else "leaves a thread"
        _, leaking = _trial(ranks, {"trainer": kind, **({"bytes": 2**30} if run.on_gpu else {})})
        why = leaking[-1].must_restart
        fine = bool(why) and not any(a.error for a in leaking)
        yield checked(f"a trial that {kind} has the process replaced", fine, why)


def _memory_is_freed(run: Run, ranks: Group) -> Iterator[Finding]:
    """After a trial its process has no more on the GPU than before it, but for kept data sets."""
    left = []
    for _ in range(2):
        _trial(ranks, _config(run))
        _, empty = _trial(ranks, {"trainer": "allocated"})
        left.append((empty[1].metrics or {}).get("bytes", 0.0) / 2**20)
    text = f"{left[0]:.1f} MiB, then {left[1]:.1f}"
    yield checked("memory of a trial is free after it", left[1] <= left[0] + 1, text)


def _deterministic(run: Run, ranks: Group) -> Iterator[Finding]:
    """Torch asks for cuBLAS's workspace at a process's first product, which is a plain trial's."""
    plain, fixed = (
        _why(_trial(ranks, _config(run, deterministic=wanted))[1]) for wanted in (False, True)
    )
    why = plain or fixed
    yield checked("a deterministic trial ends well after a plain one", not why, why)


def _tf32(ranks: Group) -> Iterator[Finding]:
    """A trial that sets TF32 by torch's newest API ends well, and the next one has what was."""
    _, before = _trial(ranks, {"trainer": "settings"})
    _, changing = _trial(ranks, {"trainer": "settings", "changes": True})
    errors = [answer.error for answer in changing if answer.error]
    yield checked(
        "a trial that sets TF32 does not fail", not errors, errors[0][-500:] if errors else ""
    )
    if errors:
        return
    why = changing[-1].must_restart
    yield checked("its process goes on", not why, why)
    _, after = _trial(ranks, {"trainer": "settings"})
    same = after[1].metrics == before[1].metrics
    yield checked("the next trial computes as before", same, f"{after[1].metrics}")


def _memory_is_waited_for(run: Run) -> Iterator[Finding]:
    """A rank that joins waits for the memory of a process that is about to end."""
    name = "joining waits for the predecessor's memory"
    if not run.on_gpu:
        yield not_run(name, "a CPU has none of its own")
        return
    free, total = torch.cuda.mem_get_info(run.device)
    with _holding(int(0.9 * free), seconds=9), group(by_name, 1, 1.0):
        after, _ = torch.cuda.mem_get_info(run.device)
        yield checked(name, after > 0.8 * free, f"{after / total:.0%} are free then")


@contextmanager
def _holding(size: int, seconds: float) -> Iterator[None]:
    """Another process holds so many bytes of the GPU, for so many seconds or until the end."""
    code = (
        f"import torch, time; x = torch.empty({size}, dtype=torch.uint8, device='cuda'); "
        f"print('ready', flush=True); time.sleep({seconds})"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"another process could not take {size} bytes of the GPU")
        try:
            yield
        finally:
            process.kill()


def out_of_memory(run: Run) -> Iterator[Finding]:
    """From an allocation that fails to the next milestone, the microbatch halved as needed."""
    with group(by_name, 1, run.gpus) as one:
        yield from warm_up_without_memory(run, one, 0)
    yield from _halved(run)
    yield from _crowded(run)


def _halved(run: Run) -> Iterator[Finding]:
    """Microbatches are halved until one fits."""
    config = _config(run, trainer="needs memory", fits=run.pick(32, 4))
    ranks = Group(by_name, 1, run.gpus)
    try:
        _trial(ranks, _config(run))
        begin, microbatch, processes = time.perf_counter(), config["batch_size"], 1
        for _ in range(8):
            begin, failed = _until_memory_ends(ranks, config, microbatch, begin)
            if not failed:
                break
            yield checked(
                f"a pass of {microbatch} is out of memory",
                failed[0].out_of_memory,
                failed[0].reason,
            )
            microbatch //= 2
            if failed[0].must_restart:
                ranks.end()
                ranks, processes = Group(by_name, 1, run.gpus), processes + 1
        seconds = time.perf_counter() - begin
        yield checked("a milestone follows", not failed, f"passes of {microbatch}")
        yield run.at_most("from the first failure to it", seconds, MEMORY_SECONDS, "s")
        yield measured("processes used", processes)
    finally:
        ranks.end()


def warm_up_without_memory(run: Run, ranks: Group, full: int) -> Iterator[Finding]:
    """Memory that runs out in a warm-up, on the rank `full`: the processes train the next trial."""
    more = {"trainer": "warms up without memory", "full": full, "norm": "group"}
    failed = ranks.start(_config(run, **more))
    ended = all(a.kind == "raised" and not a.must_restart for a in failed)
    text = "; ".join(a.must_restart or a.reason for a in failed)
    yield checked("without memory in its warm-up a trial keeps the processes", ended, text)
    yield checked("and says so", failed[full].out_of_memory, failed[full].reason)
    if ended:
        _, answers = _trial(ranks, _config(run))
        yield checked("they train the next one", not _why(answers), _why(answers))


def _until_memory_ends(
    ranks: Group, config: dict[str, Any], microbatch: int, begin: float
) -> tuple[float, list[Answer]]:
    """When memory first failed, and the answers that say so."""
    first = microbatch == config["batch_size"]
    answers = ranks.start(config, microbatch=None if first else microbatch)
    if answers[0].kind == "milestone":
        answers = ranks("resume", None, None)
    failed = [a for a in answers if a.kind == "raised"]
    return (time.perf_counter() if first else begin), failed


def _crowded(run: Run) -> Iterator[Finding]:
    """Whose fault it is when a rank with half of a GPU is out of memory."""
    name = "memory of a shared GPU that others hold"
    if not run.on_gpu:
        yield not_run(name, "a CPU has none of its own")
        return
    _, total = torch.cuda.mem_get_info(run.device)
    config = {"trainer": "takes memory", "share": 0.95 * share_of(0.5, total)}
    with group(by_name, 1, 0.5) as ranks:
        _, fits = _trial(ranks, config)
        yield checked("a trial's own half of a GPU fits", not _why(fits), _why(fits))
        _, greedy = _trial(ranks, {**config, "share": 0.6})
        own = greedy[-1]
        right = own.out_of_memory and not own.crowded
        yield checked("a trial that takes more is itself at fault", right, own.reason)
        with _holding(int(OTHERS_SHARE * total), seconds=600):
            _, beside = _trial(ranks, config)
        last = beside[-1]
        right = last.out_of_memory and last.crowded
        yield checked(f"{name} is not the trial's fault", right, last.reason)


def queued_kernels(run: Run) -> Iterator[Finding]:
    """Work that is queued when the trainer yields is training's, and not the evaluation's."""
    seconds = run.pick(1, 0) * QUEUED_SECONDS or 0.02
    config = {"trainer": "queues", "seconds": seconds, "cycles": _cycles(run, seconds)}
    yield from _clock(run, config, run.gpus, "")
    if not run.on_gpu or torch.cuda.device_count() < 2:
        why = "one GPU is here" if run.on_gpu else "a CPU is one device"
        yield not_run("the clock of a rank with two GPUs", why)
        return
    yield from _clock(run, {**config, "gpu": 1}, 2, " with kernels on a rank's second GPU")


def _clock(run: Run, config: dict[str, Any], gpus: float, where: str) -> Iterator[Finding]:
    seconds = config["seconds"]
    with group(by_name, 1, gpus) as ranks:
        _trial(ranks, config)
        ranks.start(config)
        (answer,) = ranks("resume", None, None)
    for name, found in (("train", answer.clock.train), ("eval", answer.clock.eval)):
        text = f"{found * 1000:.0f} ms of {seconds * 1000:.0f} queued"
        yield checked(f"the clock of {name}{where}", 0.8 * seconds < found, text)
        if run.on_gpu:
            yield checked(f"the clock of {name}{where} has no more", found < 1.6 * seconds, text)


def _cycles(run: Run, seconds: float) -> int:
    """Cycles of the device that take so many seconds."""
    if not run.on_gpu:
        return 0
    count = 10**8
    return int(count * seconds / seconds_of(run, lambda: torch.cuda._sleep(count), 3))


def checkpoint_stall(run: Run) -> Iterator[Finding]:
    """How long training stands still for a checkpoint, and whether it is what was to be saved.

    Each is written before the next one begins, which would wait for the disk. Copies on a stream
    beside training's are left until these figures say what they would save.
    """
    size = run.pick(400 * 2**20, 6 * 2**20)
    config = {"trainer": "large state", "bytes": size}
    with group(by_name, 1, run.gpus) as ranks:
        ranks.start(config)
        (before,) = ranks("resume", None, None)
        stalls = []
        for number in range(run.pick(4, 2)):
            (answer,) = ranks("resume", None, str(run.folder / f"checkpoint-{number}"))
            stalls.append(answer.clock.checkpoint)
            while not (answer.saved or answer.save_error or answer.error):  # it is being written
                time.sleep(0.05)
                (answer,) = ranks("resume", None, None)
        (last,) = ranks("stop", str(run.folder / "last"))
    yield measured("the first checkpoint's stall", stalls[0] * 1000, "ms")
    yield measured("of the next ones", min(stalls[1:]) * 1000, "ms", f"{size / 2**20:.0f} MiB")
    if run.on_gpu:
        host = torch.empty(size // 4, pin_memory=True)
        source = torch.ones(size // 4, device=run.device)
        copy = seconds_of(run, lambda: host.copy_(source, non_blocking=True), 3)
        yield run.at_most("their stall / a pinned copy's time", min(stalls[1:]) / copy, 2.0)
    saved = torch.load(run.folder / "checkpoint-0" / "rank-0.pt", weights_only=True)
    found = float(saved["parts"][0].double().sum())
    expected = (before.metrics or {})["sum"]
    yield checked("it holds the state of its milestone", abs(found - expected) <= 1e-6 * expected)
    yield checked("the last one is complete", last.saved is not None, last.save_error)
