"""What a softmax over many classes costs two ranks: divided over them, or whole on each (DDP).

    python benchmarks/classes.py [--parts steps target] [--classes 10000 100000] [--mbit 100]
        [--json FILE]

`steps`: a perceptron makes 128 features of each of 64 samples, which are compared with all classes,
or with a tenth of them. *Whole*: each rank has all classes, whose gradients are averaged. The bytes
of the head are those of its rows, their gradients and momenta on a rank.
`target`: the recipe `identities:arcface` at its baseline with each of three `class_sample_rate`, to
its target, with equal seeds; seconds are of training alone, and a run that misses it counts as its
limit.
On loopback, or with `--mbit` on a cable of so many Mbit/s (root, iproute2); one thread a rank, the
sides in turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import arguments, in_turns, introduce, keep, ratios, repeats_of, summary
from _link_runs import Problem, measured
from _slow_link import Link, answers, network, options_with_cable

if TYPE_CHECKING:
    from trainers.parallel.ranks import Ranks

SIDES = {
    "whole, DDP": (False, 1.0),
    "divided": (True, 1.0),
    "divided, a tenth compared": (True, 0.1),
}
"""Whether the classes are divided, and `class_sample_rate`."""
RATES = (1.0, 0.3, 0.1)
"""Of `target`: `class_sample_rate`."""
INPUTS, WIDTH, SAMPLES, WARM = 256, 128, 64, 3
Run = dict[str, Any]


def on_rank(tasks: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What a rank's process does."""
    import torch

    from trainers.parallel.ranks import process_group

    torch.set_num_threads(1)
    with process_group() as ranks:  # what DDP has of it is freed before it is closed
        return [side_of(task, ranks) for task in tasks]


def side_of(task: dict[str, Any], ranks: Ranks) -> dict[str, float]:
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


def steps(link: Link, counts: list[int], timed: int, repeats: int) -> list[Run]:
    """The part of this name: prints a line a side, and gives all runs."""
    raw: list[Run] = []
    for count in counts:
        turns = [side for _, side in in_turns([*SIDES], repeats)]
        tasks = [{"classes": count, "how": SIDES[s], "steps": timed} for s in turns]
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
    return raw


def target(link: Link, repeats: int, quick: bool) -> list[Run]:
    """The part of this name: prints a line a rate, and gives all runs."""
    from search_spaces.identities import arcface

    recipe = arcface()
    wanted, value, start = recipe.target, recipe.target.value, recipe.baseline
    assert value is not None
    assert wanted.limit is not None
    assert start is not None
    fixed, limit = recipe.space.config(start), 3.0 if quick else wanted.limit
    problem = Problem("trainers.retrieval", fixed, wanted.metric, value, 1, limit)
    rates = {f"{rate:.0%} of the classes": [{"class_sample_rate": rate}] for rate in RATES}
    with tempfile.TemporaryDirectory() as folder:
        runs = measured(link, problem, rates, [*range(100, 101 + repeats)], Path(folder))
    seconds: dict[str, list[float]] = {}
    for name in rates:
        of = [run for run in runs if run["technique"] == name and not run["tuning"]]
        seconds[name] = [run["seconds"] if run["reached"] else limit for run in of]
        samples = [run["samples"] for run in of if run["reached"]]
        print(
            f"  {name}: {len(samples)} of {len(of)} reached {wanted.metric} {value:g}, "
            f"after {summary(samples, ' samples')}, {summary(seconds[name], ' s')}, "
            f"all classes over it {summary(ratios(seconds[next(iter(rates))], seconds[name]))}",
            flush=True,
        )
    return runs


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parts = ("steps", "target")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument(
        "--classes", type=int, nargs="+", default=[10_000, 100_000], help="of `steps`"
    )
    parser.add_argument("--steps", type=int, default=30, help="that are timed in a run (30)")
    options = options_with_cable(parser)
    if options.quick:
        options.classes, options.steps = [1000], 2
    about, repeats, runs = introduce(), repeats_of(options), list[Run]()
    with network(options.mbit) as link:
        if "steps" in options.parts:
            runs += steps(link, options.classes, options.steps, repeats)
        if "target" in options.parts:
            runs += target(link, repeats, options.quick)
    keep(options.json, about, mbit=options.mbit, runs=runs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        print(json.dumps(on_rank(json.loads(sys.argv[2]))))
    else:
        main()
