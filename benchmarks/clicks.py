"""What the ways of updating a sharded table come to on two ranks: AUC, and time to an AUC.

    python benchmarks/clicks.py [--epochs 1] [--auc 0.8] [--mbit 10] [--repeats 5]
        [--json FILE]

The recipe `clicks:generated` at its baseline, with one thread a rank, on loopback, or with `--mbit`
on a cable of so many Mbit/s (root, iproute2). A repeat is a seed, and all ways take turns on it.
Seconds are of training alone, up to the first milestone that has the AUC.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from _common import arguments, in_turns, introduce, keep, repeats_of, summary
from _slow_link import answers, network, options_with_cable

WAYS = ("synchronous", "asynchronous", "geo_sgd", "hogwild")
"""With the trainer's defaults: a bound of 4 steps, an exchange every 8, two workers a rank."""
BASELINE = {"batch_size": 128, "lr": 0.003, "lr_sparse": 0.05}
Run = list[list[float]]
"""Of each milestone: samples, seconds, AUC, mean staleness in steps."""


def on_rank(configs: list[dict[str, Any]]) -> list[Run]:
    """What a rank's process does."""
    import torch

    from trainers.parallel.ranks import process_group

    torch.set_num_threads(1)
    with process_group():
        return [run(config) for config in configs]


def run(config: dict[str, Any]) -> Run:
    """One training; the clock is that of the slowest rank."""
    import torch
    import torch.distributed as dist

    from trainers import clicks

    trainer = clicks.train(config)
    found, seconds = [], 0.0
    next(trainer)
    begun = time.perf_counter()
    for milestone in trainer:
        clock = torch.tensor(time.perf_counter() - begun, dtype=torch.float64)
        dist.all_reduce(clock, op=dist.ReduceOp.MAX)
        seconds += float(clock)
        metrics: Any = milestone.evaluate()
        found.append([milestone.step, seconds, metrics["val_auc"], metrics["staleness_mean"]])
        begun = time.perf_counter()
    return found


def show(way: str, runs: list[Run], auc: float) -> None:
    """One line: the AUC at the end, how stale gradients were, samples and seconds to `auc`."""
    last = [run[-1][2] for run in runs]
    varies = f", standard deviation {statistics.stdev(last):.4f}" if len(last) > 1 else ""
    stale = [statistics.mean(milestone[3] for milestone in run) for run in runs]
    first = [next((m[:2] for m in run if m[2] >= auc), None) for run in runs]
    reached = [found for found in first if found is not None]
    samples, seconds = ([found[i] for found in reached] for i in range(2))
    print(
        f"  {way}: AUC {statistics.mean(last):.4f} ({min(last):.4f} to {max(last):.4f}{varies}), "
        f"stale by {summary(stale, ' steps')}; {len(reached)} of {len(runs)} reached {auc:g}, "
        f"after {summary(samples, ' samples')}, {summary(seconds, ' s')}",
        flush=True,
    )


def main() -> None:
    from search_spaces.clicks import SETTING

    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--epochs", type=float, default=1.0, help="of training (1)")
    parser.add_argument("--auc", type=float, default=0.8, help="to which seconds are printed (0.8)")
    options = options_with_cable(parser)
    config = {**SETTING, **BASELINE, "horizon": options.epochs, "max_epochs": options.epochs}
    if options.quick:
        config |= {"train_size": 5000, "val_size": 1000}
    about, raw = introduce(), list[dict[str, Any]]()
    turns = [*in_turns(WAYS, repeats_of(options))]
    task = [{**config, "sparse_update": way, "seed": seed} for seed, way in turns]
    with network(options.mbit) as link:
        found: list[Run] = answers(link, 2, [__file__, "--rank", json.dumps(task)], 3600)[0]
    for (seed, way), milestones in zip(turns, found, strict=True):
        raw.append({"way": way, "seed": seed, "milestones": milestones})
    for way in WAYS:
        show(way, [one["milestones"] for one in raw if one["way"] == way], options.auc)
    keep(options.json, about, mbit=options.mbit, config=config, runs=raw)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        print(json.dumps(on_rank(json.loads(sys.argv[2]))))
    else:
        main()
