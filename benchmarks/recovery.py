"""Seconds from a SIGKILL until the same trial trains again: of a rank, of a node, of the driver.

    python benchmarks/recovery.py [--repeats 5] [--json FILE]

A study of one trial on two ranks (on one, where its node is killed) saves its state at every
milestone. Once a checkpoint is whole, something is killed. The trial trains again when its trainer
has its state back on all ranks and they have done an `all_reduce`; both moments are on the clock
that all processes of a machine share.

    rank      one of two ranks. Its group is replaced: new processes, torch, a new process group
    node      all processes of a Ray node, among them the trial's rank; another node stands by.
              The driver learns of the worker at once, long before Ray gives up the node
    driver    the driver; the next one is started at once, as a script would by `autotune resume`.
              Its Ray cluster stays

Every figure comes from a process and a cluster of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _common import (
    Answer,
    Task,
    arguments,
    in_turns,
    introduce,
    keep,
    measure,
    repeats_of,
    serve,
    start_ray,
    summary,
)

STEPS = 20
STEP_SECONDS = 0.25
DEADLINE = 300.0


# --- the study ----------------------------------------------------------------------------------


def experiment(log: str, ranks: int) -> Any:
    """One trial that notes in `log` when it begins to train, and at which step."""
    import autotune

    def train(config: dict[str, Any]) -> Iterator[Any]:
        import torch
        import torch.distributed as dist

        step = config.get("state", {"step": 0})["step"]
        dist.all_reduce(torch.ones(1))
        with open(config["log"], "a") as file:
            file.write(f"{step} {time.monotonic()} {os.getpid()}\n")
        while step <= STEPS:
            done = {"step": step}
            yield autotune.Milestone(step, done.copy, done.copy)
            time.sleep(STEP_SECONDS)
            step += 1

    space = autotune.SearchSpace({"x": autotune.Float(0, 1), "log": autotune.Fixed(log)})
    return autotune.Experiment(
        "recovery",
        train,
        space,
        autotune.Target("step", STEPS, limit=3600.0),
        scaling=autotune.Scaling(num_workers=ranks, max_concurrent_trials=1),
        failure=autotune.FailurePolicy(checkpoint_interval=0, hang_timeout=DEADLINE),
    )


def drive(task: Task) -> Answer:
    """A driver: runs the study, or goes on with it."""
    import autotune

    made = experiment(task["log"], task["ranks"])
    options: dict[str, Any] = {"sampler": "random", "pruner": "none", "tracking_uri": "off"}
    folder, address = Path(task["folder"], "study"), task["address"]
    result = autotune.run(made, trials=1, out=folder, ray_address=address, **options)
    (trial,) = result.trials
    return {"state": str(trial.state), "attempts": trial.attempts}


def driver(task: Task, address: str, ranks: int) -> subprocess.Popen[bytes]:
    """The same as a process of its own."""
    own = {"folder": task["folder"], "log": log_of(task), "address": address, "ranks": ranks}
    answer = str(Path(task["folder"], "driver.json"))
    command = [sys.executable, __file__, "--side", "drive", "--task", json.dumps(own)]
    return subprocess.Popen([*command, "--answer", answer], stdout=subprocess.DEVNULL)


def log_of(task: Task) -> str:
    return str(Path(task["folder"], "log"))


def began(task: Task) -> list[tuple[int, float, int]]:
    """Every beginning of a rank so far: its step, the moment, and the process."""
    file = Path(log_of(task))
    lines = file.read_text().splitlines() if file.exists() else []
    rows = (line.split() for line in lines)
    return [(int(step), float(at), int(pid)) for step, at, pid in rows]


# --- what is killed -----------------------------------------------------------------------------


def recovery(task: Task, address: str, ranks: int, kill: Callable[[Any], Any]) -> Answer:
    """Seconds from `kill(driver)` until all ranks of the trial train again."""
    process = driver(task, address, ranks)
    journal = Path(task["folder"], "study", "journal.jsonl")
    wait_for(lambda: journal.exists() and journal.read_text().count('"event":"saved"') >= 2)
    before = len(began(task))
    at = time.monotonic()
    process = kill(process) or process
    wait_for(lambda: len(began(task)) >= before + ranks)
    again = began(task)[before:]
    code = process.wait(DEADLINE)
    if code or not all(step > 0 for step, _, _ in again):
        raise RuntimeError(f"the trial did not go on from its checkpoint: {again}, exit {code}")
    return {"seconds": max(moment for _, moment, _ in again) - at, "step": again[0][0]}


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("the study does not get on")
        time.sleep(0.01)


def rank_side(task: Task) -> Answer:
    address = local_ray(2)
    return recovery(task, address, 2, lambda _: os.kill(began(task)[-1][2], signal.SIGKILL))


def driver_side(task: Task) -> Answer:
    address = local_ray(2)

    def kill(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        process.kill()
        process.wait()
        return driver(task, address, 2)

    return recovery(task, address, 2, kill)


def node_side(task: Task) -> Answer:
    import psutil
    from ray.cluster_utils import Cluster

    here = {"object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **here})
    for _ in range(2):
        cluster.add_node(num_cpus=1, **here)

    def kill(_: Any) -> None:
        above = psutil.Process(began(task)[-1][2]).parents()
        raylet = next(p for p in above if "raylet" in p.name())
        family = [raylet, *raylet.children(recursive=True)]
        for process in family:
            process.suspend()  # as one: none is to see another one's end
        for process in family:
            process.kill()

    try:
        return recovery(task, cluster.address, 1, kill)
    finally:
        cluster.shutdown()


def local_ray(cpus: int) -> str:
    import ray

    start_ray(cpus)
    return str(ray.get_runtime_context().gcs_address)


SIDES = {"rank": rank_side, "node": node_side, "driver": driver_side, "drive": drive}
KILLED = ("rank", "node", "driver")


def main() -> None:
    options = arguments(__doc__, repeats=5).parse_args()
    about = introduce()
    runs: list[Answer] = []
    for repeat, side in in_turns(KILLED, repeats_of(options)):
        found = measure(__file__, side, {})
        runs.append({"killed": side, "repeat": repeat, **found})
        print(f"{side}: {found['seconds']:.2f} s", flush=True)
    print(f"\n{'killed':10}seconds until the same trial trains again")
    for side in KILLED:
        print(f"{side:10}{summary([r['seconds'] for r in runs if r['killed'] == side], ' s')}")
    keep(options.json, about, runs=runs)


if __name__ == "__main__":
    if not serve(SIDES, sys.argv[1:]):
        main()
