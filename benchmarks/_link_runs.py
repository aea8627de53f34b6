"""Trainings of two ranks on a network, to a target: seconds, steps and samples of each."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from _slow_link import Link, answers

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """A training and its target.

    Args:
        trainer: its module.
        fixed: keys of every configuration.
        metric, value, sign: the target, which is reached where sign x metric is at least sign x
            value.
        limit: seconds of training.
    """

    trainer: str
    fixed: Config
    metric: str
    value: float
    sign: int
    limit: float


def trained(problem: Problem, config: Config, seed: int) -> dict[str, Any]:
    """Train on this rank until the target or the limit; the slowest rank's clock counts.

    Set-up, warm-up and evaluations are off the clock. Seconds per step are of the whole training.
    """
    import torch
    import torch.distributed as dist

    from autotune.storage.codec import decode_entries

    train = import_module(problem.trainer).train
    trainer = train(decode_entries({**problem.fixed, **config, "seed": seed}))
    milestone, seconds, reached = next(trainer), 0.0, False
    try:
        while not reached and seconds < problem.limit:
            begun = time.perf_counter()
            milestone = next(trainer, None)
            clock = torch.tensor(seconds + time.perf_counter() - begun, dtype=torch.float64)
            dist.all_reduce(clock, op=dist.ReduceOp.MAX)
            seconds = float(clock)
            if milestone is None:
                break
            step, found = milestone.step, milestone.evaluate()
            value = torch.tensor(found.get(problem.metric, float("nan")), dtype=torch.float64)
            dist.broadcast(value, 0)
            met = problem.sign * float(value) >= problem.sign * problem.value
            reached = met and seconds <= problem.limit
    finally:
        trainer.close()
    return {"seconds": seconds, "samples": step, "reached": reached}


def tuned_runs(
    problem: Problem, techniques: Mapping[str, Sequence[Config]], seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """All runs of each technique: each of its configurations once, then the best on fresh seeds.

    The first of `seeds` is that of the first runs, which a technique with one configuration has
    not; the techniques take turns on the others.
    """
    best: dict[str, Config] = {name: configs[0] for name, configs in techniques.items()}
    for name, configs in techniques.items():
        if len(configs) == 1:
            continue
        least = float("inf")
        for config in configs:
            found = trained(problem, config, seeds[0])
            yield {"technique": name, "config": config, "seed": seeds[0], "tuning": True, **found}
            seconds = found["seconds"] if found["reached"] else problem.limit + found["seconds"]
            if seconds < least:
                least, best[name] = seconds, config
    for seed in seeds[1:]:
        for name, config in best.items():
            found = trained(problem, config, seed)
            yield {"technique": name, "config": config, "seed": seed, "tuning": False, **found}


def on_rank(task: dict[str, Any]) -> list[dict[str, Any]]:
    """What a rank's process does; the first rank tells of each run on stderr."""
    import torch

    from trainers.parallel.ranks import process_group

    torch.set_num_threads(1)
    problem, runs = Problem(**task["problem"]), []
    with process_group() as ranks:  # it frees models first, without which the process may abort
        for run in tuned_runs(problem, task["techniques"], task["seeds"]):
            runs.append(run)
            if ranks.rank == 0:
                with open(task["log"], "a") as log:
                    log.write(json.dumps(run) + "\n")
    return runs


def measured(
    link: Link,
    problem: Problem,
    techniques: Mapping[str, Sequence[Config]],
    seeds: Sequence[int],
    folder: Path,
) -> list[dict[str, Any]]:
    """The runs of all techniques over a link, which are also in `runs.jsonl` of the folder."""
    from autotune.storage.codec import encode

    task = {
        "problem": vars(problem),
        "techniques": techniques,
        "seeds": list(seeds),
        "log": str(folder / "runs.jsonl"),
    }
    file = folder / "task.json"
    file.write_text(json.dumps(encode(task)))
    runs: list[dict[str, Any]] = answers(link, 2, [__file__, str(file)], 24 * 3600)[0]
    return runs


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    print(json.dumps(on_rank(json.loads(Path(sys.argv[1]).read_text()))))
