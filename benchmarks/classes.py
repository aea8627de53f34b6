"""What a softmax over many classes costs two ranks: divided over them, or whole on each (DDP).

    python benchmarks/classes.py [--classes 10000 100000] [--mbit 100] [--json FILE]

A perceptron makes 128 features of each of 64 samples, which are compared with all classes, or with
a tenth of them. *Whole*: each rank has all classes, whose gradients are averaged. The bytes of the
head are those of its rows, their gradients and momenta on a rank. On loopback, or with `--mbit` on
a cable of so many Mbit/s (root, iproute2); one thread a rank, the sides in turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from _common import arguments, in_turns, introduce, keep, ratios, repeats_of, summary
from _slow_link import answers, lacking, network

if TYPE_CHECKING:
    from trainers.parallel.ranks import Ranks

SIDES = {
    "whole, DDP": (False, 1.0),
    "divided": (True, 1.0),
    "divided, a tenth compared": (True, 0.1),
}
"""Whether the classes are divided, and `class_sample_rate`."""
INPUTS, WIDTH, SAMPLES, WARM = 256, 128, 64, 3


def on_rank(tasks: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What a rank's process does."""
    import torch

    from trainers.parallel.ranks import process_group

    torch.set_num_threads(1)
    with process_group() as ranks:  # what DDP has of it is freed before it is closed
        return [measured(task, ranks) for task in tasks]


def measured(task: dict[str, Any], ranks: Ranks) -> dict[str, float]:
    """One side: median seconds of a step, bytes of the head, the last loss."""
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel

    from trainers.models.recognition import Classes, Margin, Normalised

    rank, size, (divided, rate) = ranks.rank, ranks.size, task["how"]
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    backbone.append(Normalised())
    of = ranks if divided else replace(ranks, rank=0, size=1)
    head = Classes(task["classes"], WIDTH, of, Margin("arcface", 0.2), lambda progress: rate, 0)

    class Compared(nn.Module):
        """What DDP sees: the whole model, or all of it but the classes."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = backbone, None if divided else head

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            features: Tensor = self.backbone(x)
            return features if self.head is None else self.head.loss(features, y, 0.0, "mean")

    model = DistributedDataParallel(Compared())
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], 0.1, 0.9)
    random, seconds = torch.Generator().manual_seed(rank), []
    for _ in range(WARM + task["steps"]):
        x = torch.randn(SAMPLES // size, INPUTS, generator=random)
        y = torch.randint(task["classes"], (SAMPLES // size,), generator=random)
        dist.barrier()
        begun = time.perf_counter()
        found = model(x, y)
        loss = head.loss(found, y, 0.0, "mean") if divided else found
        loss.backward()
        if divided:  # of the sum over the ranks
            assert head.weight.grad is not None
            head.weight.grad.div_(size)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begun)
    momenta = optimizer.state[head.weight]["momentum_buffer"].nbytes
    middle = statistics.median(seconds[WARM:])
    return {"seconds": middle, "bytes": 2 * head.weight.nbytes + momenta, "loss": loss.item()}


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--classes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--steps", type=int, default=30, help="that are timed, in each run (30)")
    parser.add_argument("--mbit", type=float, help="the speed of a cable (none: loopback)")
    options = parser.parse_args()
    if options.mbit is not None and (reason := lacking(options.mbit)):
        parser.exit(2, f"{parser.prog}: --mbit {options.mbit:g}: {reason}\n")
    if options.quick:
        options.classes, options.steps = [1000], 2
    about, raw = introduce(), list[dict[str, Any]]()
    with network(options.mbit) as link:
        for count in options.classes:
            turns = [side for _, side in in_turns([*SIDES], repeats_of(options))]
            tasks = [{"classes": count, "how": SIDES[s], "steps": options.steps} for s in turns]
            given = [__file__, "--rank", json.dumps(tasks)]
            found: list[dict[str, float]] = answers(link, 2, given, 3600)[0]
            runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
            for side, task, one in zip(turns, tasks, found, strict=True):
                runs[side].append(one)
                raw.append({"side": side, **task, **one})
            whole = [run["seconds"] for run in runs["whole, DDP"]]
            for side, made in runs.items():
                own = [run["seconds"] for run in made]
                print(
                    f"  {count} classes, {side}: {made[0]['bytes'] / 1e6:.1f} MB a rank, "
                    f"{summary([1000 * s for s in own], ' ms')} a step, of whole over it "
                    f"{summary(ratios(whole, own))}",
                    flush=True,
                )
    keep(options.json, about, mbit=options.mbit, runs=raw)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        print(json.dumps(on_rank(json.loads(sys.argv[2]))))
    else:
        main()
