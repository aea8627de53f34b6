"""What schedules cost: nanoseconds an evaluation, and throughput beside constants.

    python benchmarks/schedules.py [--repeats 5] [--milestones 8]

The first table times one call of each family at random progress, beside an empty Python function
and torch's own `LambdaLR.step`. The second trains on digits alone, in this process's children,
without Ray: `scheduled` changes learning rate, momentum, weight decay and label smoothing at every
step, and batch and image size half-way; `small` and `large` hold the values of its two halves
constant. Each ratio is the scheduled half's samples a second over those of the constant run of the
same batch and image size, in turns; the first milestone of a half is part of it.
"""

from __future__ import annotations

import statistics
import sys
import time
import timeit
from random import Random
from typing import Any

from _common import Answer, Task, arguments, in_turns, introduce, keep, measure, serve, told

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
    """Samples a second of each half: of a run of twice `milestones` milestones."""
    import torch

    from trainers.image import train

    torch.set_num_threads(1)
    config, half = _config(task), task["milestones"]
    config["horizon"] = 2 * half * 2560 / 1078  # digits has 1078 training images
    run = train(config)
    reached = [next(run).step]
    times = [time.perf_counter()]
    for _ in range(2 * half):
        reached.append(next(run).step)
        times.append(time.perf_counter())
    run.close()
    rates = [
        (reached[b] - reached[a]) / (times[b] - times[a]) for a, b in ((0, half), (half, 2 * half))
    ]
    return {"samples_per_second": rates}


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--milestones", type=int, help="of each half, 2560 samples each (8)")
    options = parser.parse_args()
    repeats = options.repeats or (1 if options.quick else options.full_repeats)
    half = options.milestones or (1 if options.quick else 8)
    about = introduce()
    calls = measure(__file__, "calls", {})["nanoseconds"]
    for name, nanoseconds in calls.items():
        print(f"{name:>24}  {nanoseconds:8.0f} ns")
    rates: dict[str, list[list[float]]] = {"small": [], "large": [], "scheduled": []}
    for _, setting in in_turns(list(rates), repeats):
        answer = measure(__file__, "train", {"setting": setting, "milestones": half})
        rates[setting].append(answer["samples_per_second"])
    ratios = {}
    for i, constant in enumerate(("small", "large")):
        pairs = zip(rates["scheduled"], rates[constant], strict=True)
        ratios[constant] = [own[i] / statistics.fmean(other) for own, other in pairs]
        print(f"scheduled over constant, {constant} half: {told(ratios[constant], '')}")
    keep(options.json, about, runs=rates, ratios=ratios, nanoseconds=calls)


if __name__ == "__main__" and not serve({"calls": calls_side, "train": train_side}, sys.argv[1:]):
    main()
