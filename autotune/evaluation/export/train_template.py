"""Trains what an export of autotune's holds, without Ray, Optuna or MLflow.

    python train.py                              # one rank
    torchrun --nproc-per-node RANKS train.py     # as many as the trial had, to compare with it

Beside it, `config.json` says what is trained, and `trial.json` by which trainer, to which target,
with which seed, and at which steps a controller made changes. Seconds are those of rank 0, without
set-up. Exit codes: 0 reached the target (without a value: came to the limit or its own end), 3 did
not. `autotune export` copies this file.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from autotune.backends.worker import process_group
from autotune.backends.worker.reported import returned_metrics
from autotune.backends.worker.reporting import (
    Given,
    Returned,
    Steps,
    ends_setup,
    steps,
    synchronize,
)
from autotune.schedules import from_json
from autotune.trial import Change, Milestone, Report, Target, diverged

HERE = Path(__file__).resolve().parent


def main() -> int:
    trial = json.loads((HERE / "trial.json").read_text())
    train = find_trainer(trial)
    config = {**read_config(train), "seed": trial["seed"]}
    if command := getattr(train, "command", None):  # a script trains by itself
        sys.exit(subprocess.call(command(config)))  # noqa: S603 (the user's own script)
    scaling = trial["scaling"]
    join_group(scaling["cpus_per_worker"], scaling.get("gpus_per_worker") or 0)
    random.seed(trial["seed"])
    np.random.seed(trial["seed"])
    torch.manual_seed(trial["seed"])
    changes = {made["step"]: Change(**made["change"]) for made in trial["changes"]}
    target = Target(**trial["target"])
    why = race(steps(train, config), target, changes)
    if dist.get_rank() == 0:
        print(f"ended: {why}", flush=True)
    dist.destroy_process_group()
    return 0 if why in (("target",) if target.timed else ("limit", "finished")) else 3


def race(running: Steps, target: Target, changes: dict[int, Change]) -> str:
    """Train to the target, the limit or the trainer's own end; which of them it was."""
    seconds, reports, last = 0.0, list[Report](), None
    while True:
        begin = time.perf_counter()
        try:
            milestone = running.send(changes.get(last.step) if last else None)
        except StopIteration as end:
            returned = last_milestone(end.value, last.step if last else 0, target.metric)
            if returned is None:
                return "finished"
            milestone = returned
        trained, metrics = elapsed(begin) - milestone.eval_seconds, {}
        if last is not None or not ends_setup(milestone, 0):
            found = milestone.evaluate()
            found = found.result() if isinstance(found, Future) else found
            metrics = {k: float(v) for k, v in found.items()}
            seconds += elapsed(begin) if target.clock == "wall" else trained
        at = float(milestone.step) if target.clock == "steps" else seconds
        last, report = milestone, Report(milestone.step, at, metrics)
        reports.append(report)
        why = agree("diverged" if diverged(metrics) else verdict(reports, target))
        if dist.get_rank() == 0:
            shown = "".join(f"  {name}={value!r}" for name, value in metrics.items())
            print(f"step {report.step}  {seconds:.3f} s{shown}", flush=True)
        if why:
            running.close()
            return why


def last_milestone(end: object, step: int, metric: str) -> Milestone | None:
    """What a function returned at its end as one more milestone, if it is a report."""
    metrics = returned_metrics(end.value, metric)[0] if isinstance(end, Returned) else None
    if not isinstance(end, Returned) or metrics is None:
        return None
    return Milestone(step + 1, Given(metrics), eval_seconds=end.eval_seconds)


def verdict(reports: list[Report], target: Target) -> str:
    last = reports[-1]
    if target.in_time(last) and target.met(reports):
        return "target"
    over = target.limit is not None and last.seconds >= target.limit
    over = over or (target.limit_steps is not None and last.step >= target.limit_steps)
    return "limit" if over else ""


def agree(why: str) -> str:
    """Rank 0's word, so that all ranks end at the same milestone."""
    said = [why]
    dist.broadcast_object_list(said, src=0)
    return said[0]


def elapsed(begin: float) -> float:
    synchronize()
    return time.perf_counter() - begin


def join_group(cpus: float, gpus: float) -> None:
    """The process group that the trainer had: torchrun's, or one of this process alone."""
    if cpus >= 1:
        torch.set_num_threads(int(cpus))  # the last bits of sums depend on it
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    os.environ["CUDA_VISIBLE_DEVICES"] = own_gpus(
        gpus, rank, os.environ.get("CUDA_VISIBLE_DEVICES")
    )
    os.environ["LOCAL_RANK"] = "0"  # among the GPUs that it sees
    if gpus and not torch.cuda.is_available():
        print(f"rank {rank} trains on the CPU: it sees no GPU of its own", file=sys.stderr)
    backend = process_group.backend(torch.cuda.is_available(), gpus)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend)
    else:
        os.environ.update(RANK="0", WORLD_SIZE="1")
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


def own_gpus(gpus: float, rank: int, visible: str | None) -> str:
    """The GPUs of a rank of this machine, as CUDA_VISIBLE_DEVICES names them: as many as it had.

    >>> own_gpus(1, 1, None), own_gpus(2, 1, "4,5,6,7"), own_gpus(0.5, 3, None), own_gpus(0, 0, "4")
    ('1', '6,7', '1', '')
    """
    if gpus >= 1:
        wanted = range(rank * int(gpus), (rank + 1) * int(gpus))
    else:
        first = rank // int(1 / gpus + 1e-9) if gpus else 0
        wanted = range(first, first + (gpus > 0))
    if visible is None:
        return ",".join(map(str, wanted))
    there = [gpu for gpu in visible.split(",") if gpu]
    return ",".join(there[i] for i in wanted if i < len(there))


def find_trainer(trial: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """The trainer `module:function` or `/path/file.py:function`, or else that of the recipe."""
    named, folders = trial["train"], trial["python_path"]
    if named is None and not trial.get("recipe"):
        raise SystemExit(
            'trial.json does not know where the trainer is: set its "train" to '
            "module:function or /path/file.py:function"
        )
    # In front of this file's folder, whose `train` is not the trainer's.
    sys.path[:1] = [p for p in (*folders, os.getcwd()) if Path(p).resolve() != HERE]
    if named is None:
        from autotune.study import recipes

        return recipes.load(trial["recipe"], trial.get("recipe_arguments")).train
    place, _, name = named.rpartition(":")
    try:
        module = from_file(place) if place.endswith(".py") else importlib.import_module(place)
        found: Callable[[dict[str, Any]], Any] = getattr(module, name)
    except (ImportError, OSError, AttributeError) as error:
        raise SystemExit(f"the trainer {named} is not found from here: {error}") from error
    return found


def from_file(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("exported_trainer", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_config(train: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The configuration, its schedules functions of progress, if the trainer takes it."""
    found: dict[str, Any] = {}
    path = HERE / "config.json"
    for key, value in json.loads(path.read_text()).items():
        try:
            found[key] = ready(value)
        except ValueError as error:
            raise SystemExit(f"{path}: {key}: {error}") from None
    try:
        getattr(train, "check", lambda config: None)(found)
    except ValueError as error:
        raise SystemExit(f"{path}: {error}") from None
    return found


def ready(value: Any) -> Any:
    """A value of the configuration from its JSON form: schedules become functions of progress."""
    if isinstance(value, list):
        return [ready(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "schedule" in value and "version" in value:
        return from_json(value)
    return {k: ready(v) for k, v in value.items()}


def leave(code: int) -> None:
    """End the process; of several ranks without torch's own clearing up.

    That aborts about one exit in ten on a busy machine: threads of a group that is closed already.
    """
    if int(os.environ["WORLD_SIZE"]) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
