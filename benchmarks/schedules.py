"""What schedules cost: nanoseconds a step, and throughput beside constants.

    python benchmarks/schedules.py [--repeats 3] [--milestones 20]

1. One call of each family at random progress, beside an empty Python function and torch's own
   `LambdaLR.step`.
2. All that a training step asks of its schedules (learning rate, momentum or betas, weight decay,
   trust coefficient, label smoothing, batch size, image size or sequence length, written into the
   optimizer's groups), with all of them scheduled and with all constant. The difference is what
   schedules cost a step, and is given as a share of the trainings' own steps below.
3. Throughput of both trainers on one core, without Ray: `scheduled` changes every knob at every
   step, and batch and size (of images, of sequences) half-way; `small` and `large` hold what the
   schedules say in the middle of its two halves. The scheduled and the constant run of the same
   batch and size advance by turns, a milestone each, in one process, so that what slows the machine
   slows both. A ratio is the scheduled run's samples a second over those of the constant one, of
   all milestones of a half together, in wall time and in processor time, which other processes
   disturb less; a half's first milestone is part of it. The goal is at least 0.99.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
import timeit
from random import Random
from typing import Any

import numpy as np
from _common import Answer, Task, arguments, introduce, keep, measure, serve, summary

GOAL = 0.99
CALLS, ROUNDS = 2_000, 25  # short rounds, the least of which nothing interrupted
SIZES: dict[str, dict[str, tuple[int, int]]] = {
    "images": {"batch_size": (64, 128), "image_size": (6, 8)},
    "text": {"batch_size": (16, 32), "sequence_length": (32, 64)},
}
"""What changes half-way, from and to."""
COUNTED = ("batch_size", "sequence_length")  # whose product is the samples of a step
MODELS: dict[str, dict[str, Any]] = {
    "images": {
        "data": "digits",
        "model": "resnet8",
        "width": 32,
        "augment": "crop",
        "optimizer": "sgd",
        "milestone": 2560,
    },
    "text": {
        "text": "synthetic",
        "layers": 2,
        "width": 64,
        "heads": 2,
        "optimizer": "sgd",
        "train_size": 100_000,
        "val_size": 1000,
        "milestone": 32_768,
    },
}
EPOCHS = {"images": 1078, "text": 100_000}  # samples: images of digits, tokens


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
        "piecewise, 8 knots": s.Piecewise(tuple(i / 9 for i in range(1, 9)), tuple(range(10))),
        "warm-up, cosine": s.warmed(s.Cosine(1, 0), 0.1),
        "mirrored one-cycle": s.Mirrored(cycle, 0.85, 0.95),
        "effective, following": s.Following(
            s.Effective(cycle, s.Mirrored(cycle, 0.85, 0.95)), staircase, 0.5, 64
        ),
    }


def calls_side(task: Task) -> Answer:
    """Nanoseconds a call, the least of many rounds."""
    import torch

    places = [Random(0).random() for _ in range(CALLS)]

    def round_of(call: Any) -> float:
        begin = time.perf_counter()
        for place in places:
            call(place)
        return (time.perf_counter() - begin) / CALLS * 1e9

    empty = min(round_of(lambda place: place) for _ in range(ROUNDS))
    found = {"(empty function)": empty}
    for name, schedule in families().items():
        found[name] = min(round_of(schedule) for _ in range(ROUNDS))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    steps = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    optimizer.step()
    found["(torch's LambdaLR.step)"] = min(timeit.repeat(steps.step, number=2000, repeat=5)) / 2e-6
    return {"nanoseconds": found}


def scheduled_knobs() -> dict[str, Any]:
    """Every knob that LARS has, changing at every step."""
    from autotune import schedules as s

    lr = s.warmed(s.Cosine(1.0, 0.01), 0.1)
    batch_size = s.stages((1, 64), (1, 128))
    return {
        "optimizer": "lars",
        "lr": s.Following(lr, batch_size, 0.5, 64),
        "momentum": s.Mirrored(lr, 0.85, 0.95),
        "weight_decay": s.Linear(1e-4, 1e-3),
        "trust_coefficient": s.Linear(1e-3, 2e-3),
        "label_smoothing": s.Linear(0.1, 0.0),
        "batch_size": batch_size,
    }


def step_side(task: Task) -> Answer:
    """Nanoseconds that a step spends on its knobs, the least of many rounds."""
    from torch import nn

    from autotune import schedules as s
    from trainers.knobs import Knobs, build_optimizer, fast
    from trainers.training import read_training

    found = {}
    size = s.stages((1, 6), (1, 8))
    scheduled = scheduled_knobs()
    constant = {k: v if isinstance(v, str) else v(0.25) for k, v in scheduled.items()}
    for name, config, of_size in (
        ("constant", {**constant, "batch_size": 64}, s.Constant(6)),
        ("scheduled", scheduled, size),
    ):
        training, _ = read_training(config, {}, "here")
        knobs, held_size = Knobs(training, 1, {}), fast(of_size)
        optimizer = build_optimizer(nn.Linear(2, 2), training)
        places = [Random(0).random() for _ in range(CALLS)]

        def round_of(knobs: Any, size: Any, optimizer: Any, places: Any = places) -> float:
            begin = time.perf_counter()
            for place in places:
                knobs.batch_size(place), round(size(place)), knobs.smoothing(place)
                knobs.turn(optimizer, place)
            return (time.perf_counter() - begin) / CALLS * 1e9

        found[name] = min(round_of(knobs, held_size, optimizer) for _ in range(ROUNDS))
    return {"nanoseconds": found}


def _config(task: Task) -> dict[str, Any]:
    """Schedules over the two halves of a run, or what they say in the middle of one of them."""
    from autotune import schedules as s

    sizes = SIZES[task["trainer"]]
    common: dict[str, Any] = {**MODELS[task["trainer"]], "seed": 0}
    lr = s.warmed(s.Cosine(0.1, 0.001), 0.1)
    knobs: dict[str, Any] = {
        "lr": lr,
        "momentum": s.Mirrored(lr, 0.85, 0.95),
        "weight_decay": s.Linear(1e-4, 1e-3),
        "label_smoothing": s.Linear(0.1, 0.02),
        **{key: s.stages((1, small), (1, large)) for key, (small, large) in sizes.items()},
    }
    if task["setting"] != "scheduled":
        middle = 0.25 if task["setting"] == "small" else 0.75
        values = {key: schedule(middle) for key, schedule in knobs.items()}
        knobs = {key: int(value) if key in sizes else value for key, value in values.items()}
    return {**common, **knobs}


def train_side(task: Task) -> Answer:
    """Samples, wall and processor seconds of each half: {half: {setting: [.., .., ..]}}."""
    import torch

    from trainers import image, language

    torch.set_num_threads(1)
    trainer = image if task["trainer"] == "images" else language
    half, milestone = task["milestones"], MODELS[task["trainer"]]["milestone"]
    horizon = 2 * half * milestone / EPOCHS[task["trainer"]]
    runs = {}
    for setting in ("scheduled", "small", "large"):
        config = {**_config({**task, "setting": setting}), "horizon": horizon}
        runs[setting] = trainer.train(config)
    reached = {setting: next(run).step for setting, run in runs.items()}
    found: Answer = {}
    for name in ("small", "large"):
        reached[name] = next(runs[name]).step  # its first steps are slower, and not compared
        sums = {"scheduled": np.zeros(3), name: np.zeros(3)}
        for i in range(half):
            for setting in (list(sums), list(sums)[::-1])[i % 2]:
                begin = np.array([reached[setting], time.perf_counter(), time.process_time()])
                reached[setting] = next(runs[setting]).step
                now = np.array([reached[setting], time.perf_counter(), time.process_time()])
                sums[setting] += now - begin
        found[name] = {setting: list(seconds) for setting, seconds in sums.items()}
    return found


def per_step(trainer: str, half: int, rate: float) -> float:
    """Seconds of a step in a half, at so many samples (images, tokens) a second."""
    return math.prod(pair[half] for key, pair in SIZES[trainer].items() if key in COUNTED) / rate


def compared(trainer: str, repeats: int, half: int, extra: float) -> dict[str, Any]:
    """Print the ratios of one trainer; `extra` seconds a step are what the schedules cost."""
    task = {"trainer": trainer, "milestones": half}
    runs = [measure(__file__, "train", task) for _ in range(repeats)]
    found: dict[str, list[float]] = {}
    for i, name in enumerate(("small", "large")):
        own, values = ([run[name][side] for run in runs] for side in ("scheduled", name))
        seconds = per_step(trainer, i, statistics.fmean(s / wall for s, wall, _ in values))
        share = f"schedules take {extra / seconds:.3%} of a step of {seconds * 1e3:.2f} ms"
        for k, clock in ((1, "wall time"), (2, "processor time")):
            pairs = zip(own, values, strict=True)
            ratios = [(a[0] / a[k]) / (b[0] / b[k]) for a, b in pairs]
            found[f"{name}, {clock}"] = ratios
            met = "met" if statistics.median(ratios) >= GOAL else "missed"
            print(f"{trainer}, {name} half, {clock}: {summary(ratios)}; goal {GOAL} {met}; {share}")
    return {"runs": runs, "ratios": found}


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--milestones", type=int, help="of each half (20)")
    options = parser.parse_args()
    repeats = options.repeats or (1 if options.quick else options.full_repeats)
    half = options.milestones or (1 if options.quick else 20)
    about = introduce()
    calls = measure(__file__, "calls", {})["nanoseconds"]
    for name, nanoseconds in calls.items():
        print(f"{name:>24}  {nanoseconds:8.0f} ns a call")
    steps = measure(__file__, "step", {})["nanoseconds"]
    for name, nanoseconds in steps.items():
        print(f"{'all knobs ' + name:>24}  {nanoseconds:8.0f} ns a step")
    extra = (steps["scheduled"] - steps["constant"]) / 1e9
    found = {name: compared(name, repeats, half, extra) for name in SIZES}
    keep(options.json, about, nanoseconds=calls, step_nanoseconds=steps, runs=found)


SIDES = {"calls": calls_side, "step": step_side, "train": train_side}
if __name__ == "__main__" and not serve(SIDES, sys.argv[1:]):
    main()
