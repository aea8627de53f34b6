"""Trainers that learn nothing, quickly, and go wrong in the ways that trainers do."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import autotune as at

METRIC = "val_accuracy"


def toy(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Its accuracy is `rate` times the steps; `fault` says what goes wrong from step 300 on."""
    state = config.get("state") or {"step": 0, "summed": torch.zeros(1)}
    step, summed = state["step"], state["summed"]
    fresh = step == 0
    note(config, f"start {step}")

    def milestone() -> at.Milestone:
        saved = {"step": step, "summed": summed}
        return at.Milestone(step, lambda: metrics(config, step, float(summed)), lambda: saved)

    yield milestone()
    try:
        while step < 5000:
            time.sleep(config.get("nap", 0.005))
            step += 100
            fault(config.get("fault"), step, fresh)
            one = torch.ones(1)
            dist.all_reduce(one)
            summed = summed + one / dist.get_world_size() * 100
            note(config, f"step {step}")
            if config.get("fault") == "apart" and step >= 300 and dist.get_rank() == 1:
                step += 7
            change = yield milestone()
            if change is not None:
                note(config, f"change {change.lr_factor}")
    finally:
        note(config, "closed")


def metrics(config: dict[str, Any], step: int, summed: float) -> dict[str, float]:
    if config.get("fault") == "evaluate" and step >= 300 and dist.get_rank() == 1:
        raise RuntimeError("evaluation went wrong")
    loss = float("nan") if config.get("fault") == "nan" and step >= 300 else 1.0
    return {
        METRIC: config.get("rate", 1.0) * step / 1000,
        "train_loss": loss,
        "summed": summed,
        "step": step,
        "pid": os.getpid(),
        "world": dist.get_world_size(),
        "cores": sum(1 << core for core in os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
    }


def note(config: dict[str, Any], text: str) -> None:
    """Append a line to the trial's own log, if there is one: what the trainer itself saw."""
    if config.get("log"):
        with open(config["log"], "a") as file:
            file.write(f"{config['seed']} {dist.get_rank()} {os.getpid()} {text}\n")


def fault(kind: str | None, step: int, fresh: bool) -> None:
    if step < 300 or kind is None:
        return
    rank = dist.get_rank()
    if kind == "raise":
        raise RuntimeError("bad thing")
    if kind == "differ":
        raise RuntimeError(f"bad thing on rank {rank}")
    if kind == "one" and rank == 1:
        raise RuntimeError("only here")
    if kind == "exit":
        sys.exit(3)
    if kind == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
    if kind == "full":
        full_on_the_last_rank()
    if kind == "die" and fresh and rank == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang" and rank == dist.get_world_size() - 1:
        time.sleep(1000)


def full_on_the_last_rank() -> None:
    """What the trainers' warm-up does where memory runs out on one rank."""
    from trainers.parallel.ranks import Ranks, raising_together

    ranks = Ranks(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    with raising_together(ranks):
        if ranks.rank == ranks.size - 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")


def reporter(config: dict[str, Any]) -> None:
    """A framework that owns its loop and swallows exceptions."""
    at.report(0, {})
    step = 0
    while step < 1000:
        step += 100
        time.sleep(0.005)
        try:
            at.report(step, {METRIC: config.get("rate", 1.0) * step / 1000})
        except Exception:
            note(config, "swallowed")
        except BaseException as error:
            note(config, f"{type(error).__name__} at {step}")
            raise


def deaf(config: dict[str, Any]) -> None:
    """A framework that swallows everything, and so trains on after it was stopped."""
    from autotune.backends.worker import reporting

    reporting._END_SECONDS = 0.1  # it would be waited for longer
    at.report(0, {})
    step = 0
    while True:
        step += 100
        time.sleep(0.005)
        with contextlib.suppress(BaseException):
            at.report(step, {METRIC: step / 1000, "pid": os.getpid()})


def hungry(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Needs `mib` MiB for each sample of a forward pass, from step `from` on.

    Ranks of `limited` have 200 MiB more than they hold at their start, which is what a GPU's memory
    is elsewhere. `summed` counts the samples of which gradients were added up on all ranks.
    """
    state = config.get("state") or {"step": 0, "summed": torch.zeros(1)}
    step, summed, first = state["step"], state["summed"], state["step"]
    local = config["batch_size"] // dist.get_world_size()
    microbatch = min(config.get("microbatch") or local, local)
    note(config, f"start {step} {config.get('microbatch')}")
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    if dist.get_rank() in config["limited"]:
        status = Path("/proc/self/status").read_text()
        used = int(status.partition("VmData:")[2].split()[0]) * 2**10
        resource.setrlimit(resource.RLIMIT_DATA, (used + 200 * 2**20, limits[1]))

    def milestone() -> at.Milestone:
        saved = {"step": step, "summed": summed}
        found = {METRIC: step / 1000, "summed": float(summed), "first": first}
        return at.Milestone(step, lambda: found, lambda: saved)

    yield milestone()
    try:
        while True:
            step += 100
            counted = torch.zeros(1)
            for low in range(0, local, microbatch):
                count = min(microbatch, local - low)
                if step >= config.get("from", 0):
                    torch.empty(count * config["mib"] * 2**18)
                counted += count
            dist.all_reduce(counted)
            summed = summed + counted
            yield milestone()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


hungry.memory_keys = ("mib",)  # type: ignore[attr-defined]


def pausing(config: dict[str, Any]) -> None:
    """A framework that evaluates by itself: 0.1 s of training, 0.3 s of evaluation."""
    time.sleep(0.1)
    at.report(0, {})
    for step in (10, 20):
        time.sleep(0.05)
        with at.evaluating():
            time.sleep(0.3)
        time.sleep(0.05)
        at.report(step, {METRIC: 0.5})


def leaky(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Says how it finds its process, and then leaves everything changed."""
    found = {
        "random": random.random(),
        "torch": float(torch.rand(1, dtype=torch.float64)),
        "dtype": float(torch.get_default_dtype() == torch.float32),
        "deterministic": float(torch.are_deterministic_algorithms_enabled()),
        "threads": torch.get_num_threads(),
        "grad": float(torch.is_grad_enabled()),
        "environ": float("LEFT" in os.environ),
        "home": float(os.environ.get("HOME") == "/left"),
        "folder": float(Path.cwd() == Path("/")),
        "path": float("/left" in sys.path),
        "filters": len(warnings.filters),
        "modes": torch._C._len_torch_function_stack(),
        "hooks": len(torch.nn.modules.module._global_forward_hooks),
        "stdout": float(sys.stdout is None),
        "cores": sum(1 << core for core in os.sched_getaffinity(0)),
        "world": dist.get_world_size(),
    }
    yield at.Milestone(0, dict)
    random.seed(1)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(7)
    torch.set_grad_enabled(False)
    os.environ.update(LEFT="1", HOME="/left")
    os.chdir("/")
    sys.path.append("/left")
    warnings.simplefilter("error")
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    sys.stdout = None  # type: ignore[assignment]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    dist.new_group()
    yield at.Milestone(1, lambda: found)


def leaking(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Leaves what cannot be put back."""
    yield at.Milestone(0, dict)
    if config["leak"] == "thread":
        threading.Thread(target=time.sleep, args=(30,), name="left-behind", daemon=True).start()
    if config["leak"] == "child":
        import subprocess

        subprocess.Popen(["sleep", "30"])
    if config["leak"] == "memory":
        sys.modules["leaking_left"] = [torch.ones(200 * 2**20)]  # type: ignore[assignment]
    yield at.Milestone(1, lambda: {METRIC: 1.0})


def barred(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Shows a progress bar."""
    from tqdm.auto import tqdm

    for step in tqdm(range(3)):
        watched = any(t.name == "tqdm_monitor" for t in threading.enumerate())
        yield at.Milestone(step, lambda: {METRIC: float(watched)})  # noqa: B023


def timed(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Spends known times in known places."""
    time.sleep(0.2)
    if config.get("honest", True):
        yield at.Milestone(0, dict)
    time.sleep(0.1)

    def evaluate() -> dict[str, float]:
        time.sleep(0.3)
        return {METRIC: 0.5}

    def state() -> dict[str, Any]:
        time.sleep(0.15)
        return {"step": 10}

    yield at.Milestone(10, evaluate, state, data_seconds=config.get("data", 0.04))
    time.sleep(0.1)
    yield at.Milestone(20, evaluate, state, data_seconds=0.0)


def bad(config: dict[str, Any]) -> Iterator[Any]:
    """Yields what no trainer should."""
    yield config["first"] if "first" in config else at.Milestone(0, dict)
    made: Any = {
        "text": lambda: "milestone",
        "metrics": lambda: at.Milestone(1, lambda: [1]),  # type: ignore[arg-type, return-value]
        "number": lambda: at.Milestone(1, lambda: {"acc": "high"}),  # type: ignore[dict-item]
        "back": lambda: at.Milestone(0, dict),
        "float": lambda: at.Milestone(1.5, dict),  # type: ignore[arg-type]
        "huge": lambda: at.Milestone(10**5000, dict),
        "speechless": lambda: at.Milestone(1, speechless),
    }
    yield made[config["bad"]]()


class Speechless(RuntimeError):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def speechless() -> dict[str, float]:
    raise Speechless


def without_state(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Has a function for its state, which returns none."""
    for step in range(11):
        yield at.Milestone(step, lambda s=step: {METRIC: s / 10}, lambda: None)  # type: ignore[misc]


def stateful(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Goes on from its state, or forgets to."""
    state = {} if config.get("forgets") else config.get("state", {})
    step, weights = state.get("step", 0), state.get("weights", torch.zeros(2))
    while True:
        s, w = step, weights
        yield at.Milestone(s, lambda: {METRIC: float(w.sum())}, lambda: {"step": s, "weights": w})  # noqa: B023
        step, weights = step + 10, weights + 1


def custom_state(config: dict[str, Any]) -> Iterator[at.Milestone]:
    yield at.Milestone(0, dict, lambda: {"path": Path("/")})
    yield at.Milestone(1, dict)


def regroups(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Closes the process group that it was given."""
    one = torch.ones(1)
    dist.all_reduce(one)
    yield at.Milestone(1, lambda: {METRIC: float(one)})
    dist.destroy_process_group()


def knobs(config: dict[str, Any]) -> Iterator[at.Milestone]:
    change = yield at.Milestone(0, dict)
    for step in (1, 2):
        factor = -1.0 if change is None else change.lr_factor
        change = yield at.Milestone(step, lambda f=factor: {"factor": f})  # type: ignore[misc]


def stubborn(config: dict[str, Any]) -> None:
    """A plain function that returns a generator."""
    return toy_generator(config)  # type: ignore[return-value]


def toy_generator(config: dict[str, Any]) -> Iterator[at.Milestone]:
    try:
        yield at.Milestone(0, dict)
        yield at.Milestone(1, lambda: {METRIC: 1.0})
        yield at.Milestone(2, lambda: {METRIC: 2.0})
    finally:
        Path(config["log"]).write_text("closed")


def returning(config: dict[str, Any]) -> Any:
    """A plain function, which reports at the steps that it is given."""
    for step in config.get("steps", ()):
        at.report(step, {METRIC: 0.1})
    time.sleep(0.1)
    with at.evaluating():
        time.sleep(0.2)
    return config.get("returns")


def chosen(config: dict[str, Any]) -> Generator[at.Milestone, Any, Any]:
    """The trainer that the configuration names."""
    from autotune.backends.worker.reporting import steps

    return (yield from steps(globals()[config["train"]], config))


def paced(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """A toy whose pace is in a file, so that a resumed study may have another."""
    pace = Path(config["log"]).with_name("nap")
    yield from toy({**config, "nap": float(pace.read_text())})
