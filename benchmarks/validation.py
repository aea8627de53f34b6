"""What validation beside training saves, by how much of the time evaluation takes.

    python benchmarks/validation.py [--milestones 1024 4096 16384] [--seconds 60] [--json FILE]

A small residual network trains on one core, on synthetic images, in a rank as a worker has it. The
process that validates may use every core that this script may: with one core nothing is saved, and
on a busy machine little. Both sides make the same reports, in turns. The wall clock is that of the
last report, as `Target(clock="wall")` has it: training, and what it waits for evaluation. `in
all` is the time until that report is made, which beside training is a milestone later: what a study
spends on the trial.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from _common import (
    Answer,
    Side,
    Task,
    arguments,
    in_turns,
    introduce,
    keep,
    measure,
    ratios,
    repeats_of,
    serve,
    summary,
)

CONFIG: dict[str, Any] = {
    "data": "synthetic",
    "model": "resnet8",
    "width": 16,
    "image_size": 16,
    "train_size": 2048,
    "val_size": 2048,
    "lr": 0.05,
    "batch_size": 64,
}
SIDES, CLOCKS = ("inline", "beside"), ("wall", "train", "all")


def side(task: Task) -> Answer:
    """Train until so many reports are there; seconds of the last one."""
    import cloudpickle
    import torch

    from autotune.backends.protocol import Launch
    from autotune.backends.worker.messages import Rendezvous
    from autotune.backends.worker.rank import Rank
    from autotune.trial import Clock
    from trainers.image import train

    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rank = Rank(cloudpickle.dumps(train), sys.path, 0, 1)
    rank.place("here", "127.0.0.1", 1)
    rank.join("127.0.0.1", rank.serve("127.0.0.1"), Rendezvous(False, 0, 600.0))
    config = {**CONFIG, "milestone": task["milestone"], "validation": task["how"]}
    rank.start(Launch(0, config, 0))
    begin, clock, made = time.perf_counter(), Clock(), 0
    while made < task["reports"]:
        answer = rank.resume(None, None)
        if answer.kind != "milestone":
            raise RuntimeError(f"{answer.kind}: {answer.error}")
        if answer.metrics is not None:
            clock, made = clock + answer.clock, made + 1
    taken = time.perf_counter() - begin
    rank.stop(None)
    return {"wall": clock.seconds("wall"), "train": clock.seconds("train"), "all": taken}


def show(milestone: int, runs: dict[str, list[Answer]]) -> None:
    """One line: the share of evaluation, and how much sooner the same reports are there."""
    inline, beside = (runs[how] for how in SIDES)
    share = [100 * (1 - r["train"] / r["wall"]) for r in inline]
    sooner = {k: ratios([r[k] for r in inline], [r[k] for r in beside]) for k in CLOCKS}
    print(
        f"  {milestone} samples: evaluation {summary(share, ' %')} of inline; sooner on the wall "
        f"clock {summary(sooner['wall'], ' times')}, on the train clock "
        f"{summary(sooner['train'], ' times')}, in all {summary(sooner['all'], ' times')}",
        flush=True,
    )


def reports_in(milestone: int, seconds: float) -> int:
    """How many reports inline makes in so many seconds, at least 2."""
    task = {"milestone": milestone, "reports": 2, "how": "inline"}
    two: float = measure(__file__, "side", task)["wall"]
    return max(2, round(2 * seconds / two))


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--milestones", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--seconds", type=float, default=60, help="of each run, inline")
    options = parser.parse_args()
    if options.quick:
        options.milestones, options.seconds = [512], 1
    about, raw = introduce(), []
    for milestone in options.milestones:
        task = {"milestone": milestone, "reports": reports_in(milestone, options.seconds)}
        runs: dict[str, list[Answer]] = {how: [] for how in SIDES}
        for repeat, how in in_turns(SIDES, repeats_of(options)):
            found = measure(__file__, "side", {**task, "how": how})
            runs[how].append(found)
            raw.append({**task, "how": how, "repeat": repeat, **found})
        show(milestone, runs)
    keep(options.json, about, runs=raw)


if __name__ == "__main__":
    made: dict[str, Side] = {"side": side}
    if not serve(made, sys.argv[1:]):
        main()
