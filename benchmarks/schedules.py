"""What schedules cost: nanoseconds an evaluation, and throughput beside constants.

    python benchmarks/schedules.py [--repeats 3] [--milestones 20]

The first table times one call of each family at random progress, beside an empty Python function
and torch's own `LambdaLR.step`. The second trains on digits, without Ray: `scheduled` changes
learning rate, momentum, weight decay and label smoothing at every step, and batch and image size
half-way; `small` and `large` hold the values of its two halves constant. The scheduled run and the
constant run of the same batch and image size advance by turns, a milestone each, in one process on
one thread, so that what slows the machine slows both. A half's ratio is the samples a second of the
scheduled run over those of the constant one, of all its milestones together: in wall time, and in
processor time, which other processes disturb less. The first milestone of a half is part of it.
"""

from __future__ import annotations

import sys
import time
import timeit
from random import Random
from typing import Any

import numpy as np
from _common import Answer, Task, arguments, introduce, keep, measure, serve, told

SMALL = {"batch_size": 64, "image_size": 6}
LARGE = {"batch_size": 128, "image_size": 8}
CALLS = 20_000


def families() -> dict[str, Any]:
    from autotune import schedules as s

    staircase = s.Piecewise((0.3, 0.6), (64, 128, 256), kind="constant")
    cycle = s.OneCycle(0.04, 1.0, 0.0)
    return {
        "constant": s.Constant(0.1),
        "linear": s.Linear(1, 0),
        "cosine": s.Cosine(1, 0),
        "polynomial": s.Polynomial(1, 0),
        "exponential": s.Exponential(1, 0.01),
        "inverse square root": s.InverseSqrt(1, 0.1),
        "step": s.Step(1, 0.01),
        "one-cycle": cycle,
        "WSD": s.WSD(0, 1, 0),
        "piecewise, 8 knots": s.Piecewise([i / 9 for i in range(1, 9)], list(range(10))),
        "warm-up, cosine": s.warmed(s.Cosine(1, 0), 0.1),
        "mirrored one-cycle": s.Mirrored(cycle, 0.85, 0.95),
        "effective, following": s.Following(
            s.Effective(cycle, s.Mirrored(cycle, 0.85, 0.95)), staircase, 0.5, 64
        ),
    }


def calls_side(task: Task) -> Answer:
    """Nanoseconds a call, the least of five rounds."""
    import torch

    places = [Random(0).random() for _ in range(CALLS)]

    def round_of(call: Any) -> float:
        begin = time.perf_counter()
        for place in places:
            call(place)
        return (time.perf_counter() - begin) / CALLS * 1e9

    empty = min(round_of(lambda place: place) for _ in range(5))
    found = {"(empty function)": empty}
    for name, schedule in families().items():
        found[name] = min(round_of(schedule) for _ in range(5))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    steps = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    optimizer.step()
    found["(torch's LambdaLR.step)"] = min(timeit.repeat(steps.step, number=2000, repeat=5)) / 2e-6
    return {"nanoseconds": found}


def _config(task: Task) -> dict[str, Any]:
    from autotune import schedules as s

    common = {"data": "digits", "model": "resnet8", "width": 32, "optimizer": "sgd"}
    common |= {"milestone": 2560, "horizon": 1e9, "seed": 0, "augment": "crop", "lr": 0.05}
    if task["setting"] != "scheduled":
        return {**common, **(SMALL if task["setting"] == "small" else LARGE)}
    lr = s.warmed(s.Cosine(0.1, 0.001), 0.1)
    return {
        **common,
        "lr": lr,
        "momentum": s.Mirrored(lr, 0.85, 0.95),
        "weight_decay": s.Linear(1e-4, 1e-3),
        "label_smoothing": s.Linear(0.1, 0.0),
        **{k: s.stages((1, SMALL[k]), (1, LARGE[k])) for k in SMALL},
    }


def train_side(task: Task) -> Answer:
    """Wall and processor seconds of each half, of both runs: {half: {setting: [wall, cpu]}}."""
    import torch

    from trainers.image import train

    torch.set_num_threads(1)
    half = task["milestones"]
    horizon = 2 * half * 2560 / 1078  # digits has 1078 training images
    settings = ("scheduled", "small", "large")
    runs = {name: train({**_config({"setting": name}), "horizon": horizon}) for name in settings}
    for run in runs.values():
        next(run)
    found: Answer = {}
    for name in ("small", "large"):
        next(runs[name])  # the constant run's kernels are chosen before its clock starts
        sums = {"scheduled": np.zeros(2), name: np.zeros(2)}
        for i in range(half):
            for setting in (list(sums), list(sums)[::-1])[i % 2]:
                begin = np.array([time.perf_counter(), time.process_time()])
                next(runs[setting])
                sums[setting] += [time.perf_counter(), time.process_time()] - begin
        found[name] = {setting: list(seconds) for setting, seconds in sums.items()}
    for run in runs.values():
        run.close()
    return found


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--milestones", type=int, help="of each half, 2560 samples each (20)")
    options = parser.parse_args()
    repeats = options.repeats or (1 if options.quick else options.full_repeats)
    half = options.milestones or (1 if options.quick else 20)
    about = introduce()
    calls = measure(__file__, "calls", {})["nanoseconds"]
    for name, nanoseconds in calls.items():
        print(f"{name:>24}  {nanoseconds:8.0f} ns")
    runs = [measure(__file__, "train", {"milestones": half}) for _ in range(repeats)]
    ratios: dict[str, list[float]] = {}
    for half_of in ("small", "large"):
        for i, clock in enumerate(("wall", "processor")):
            own = [run[half_of][half_of][i] / run[half_of]["scheduled"][i] for run in runs]
            ratios[f"{half_of}, {clock}"] = own
            print(f"scheduled over constant, {half_of} half, {clock} time: {told(own, '')}")
    keep(options.json, about, runs=runs, ratios=ratios, nanoseconds=calls)


if __name__ == "__main__" and not serve({"calls": calls_side, "train": train_side}, sys.argv[1:]):
    main()
