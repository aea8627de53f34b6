"""What do messages cost two ranks on slow networks?

    python benchmarks/slow_link.py [--repeats N] [--quick] [--json FILE]

Seconds of a sum of 1 and of 10 MB over both ranks, and of a training step of a small GPT with each
compression of gradients: on loopback, and over a cable of 1000, 100 and 10 Mbit/s between two
network namespaces (`_slow_link.py`; it needs root). Gloo sends, and each rank has one thread. The
networks take turns. A step's time is the mean of steps between two milestones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from _common import arguments, in_turns, introduce, keep, repeats_of, spread
from _slow_link import answers, available, network

LINKS: dict[str, float | None] = {"loopback": None, "1000": 1000, "100": 100, "10": 10}
MEGABYTES = (1, 10)
STEPS = 8
TEXT = {
    "text": "synthetic",
    "optimizer": "sgd",
    "lr": 0.1,
    "layers": 2,
    "width": 96,
    "heads": 3,
    "sequence_length": 64,
    "batch_size": 16,
    "train_size": 40_000,
    "val_size": 512,
    "milestone": 16 * 64 * STEPS,
}
_ADAM = {"optimizer": "adamw", "lr": 0.003}
TRAININGS: dict[str, dict[str, Any]] = {
    "whole gradients": {},
    "fp16": {"gradient_compression": "fp16"},
    "powersgd, rank 2": {"gradient_compression": "powersgd", "powersgd_start": 2},
    "dgc, 1 %": {"gradient_compression": "dgc"},
    "1-bit Adam": {**_ADAM, "gradient_compression": "one_bit", "one_bit_warmup_steps": 2},
}


def rank(quick: bool) -> dict[str, float]:
    """Seconds of each operation, on this rank."""
    import torch
    import torch.distributed as dist

    from trainers.parallel.ranks import process_group

    torch.set_num_threads(1)
    found: dict[str, float] = {}
    with process_group():
        for megabytes in MEGABYTES[: 1 if quick else None]:
            message = torch.ones(megabytes * 250_000)
            dist.barrier()
            begun = time.perf_counter()
            dist.all_reduce(message)
            found[f"sum of {megabytes} MB"] = time.perf_counter() - begun
        for name, keys in [*TRAININGS.items()][: 2 if quick else None]:
            found[f"step, {name}"] = step(keys)
    return found


def step(keys: dict[str, Any]) -> float:
    """Mean seconds of a training step, after steps with which compressions begin."""
    from trainers import language

    trainer = language.train({**TEXT, **keys})
    next(trainer)
    next(trainer)
    metrics: Any = next(trainer).evaluate()
    trainer.close()
    return 16 * 64 / float(metrics["samples_per_second"])


def main() -> None:
    parser = arguments(__doc__ or "", 3)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        print(json.dumps(rank(options.quick)))
        return
    about = introduce()
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    names = [*LINKS][: None if available() else 1]
    own = [__file__, "--rank", *(["--quick"] if options.quick else [])]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _, name in in_turns(names, repeats_of(options)):
        with network(LINKS[name]) as link:
            ranks = answers(link, 2, own)
        runs[name].append({key: max(one[key] for one in ranks) for key in ranks[0]})
    print(f"{'seconds, the median':<26}" + "".join(f"{_head(name):>14}" for name in names))
    for key in next(iter(runs.values()))[0]:
        medians = [spread([run[key] for run in of])[0] for of in runs.values()]
        print(f"{key:<26}" + "".join(f"{seconds:14.4f}" for seconds in medians))
    keep(options.json, about, runs=runs)


def _head(name: str) -> str:
    return name if LINKS[name] is None else f"{name} Mbit/s"


if __name__ == "__main__":
    main()
