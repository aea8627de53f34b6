"""What controllers are worth on digits: real training in this process, a virtual clock of epochs.

A trial's seconds are the epochs that it has trained, so that a busy machine changes nothing and the
figures can be made again to the last digit. Everything else is a study like any other.

    wrong     the regulator against a constant learning rate that is wrong by x0.1 ... x10
    learned   policies after 64 and 128 trials, on fresh seeds, against a constant learning rate
              and the best static schedule that as many trials found
    robust    policies trained over learning rates of two decades, on those of `wrong`
    tasks     controllers of the learning rate, and the ramp of the batch by the noise scale, on
              three tasks, from learning rates that are wrong by x0.1, x1 and x10; what AutoLRS
              explores is on its clock
    batch     larger batches, from the start or grown by the noise scale, and AdaScale
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _controller_tasks import Outcome, Task, batches, outcome, steered, tasks
from _live import live
from _shared import bootstrap, introduce, keep

import autotune as at
from autotune.algorithms.controllers import policy, regulator, weights_file
from autotune.algorithms.controllers.linear import Linear
from autotune.backends.simulator import SimPool
from autotune.evaluation.export.replay import SamePoint
from trainers.image import train

EPOCH = 1078
LR = 0.05  # the best constant one of a coarse grid
WRONG = (0.1, 0.32, 1.0, 3.2, 10.0)
TARGET = at.Target("val_accuracy", 0.97, limit=12.0)
SETTING = {
    "data": "digits",
    "model": "mlp",
    "width": 64,
    "batch_size": 64,
    "momentum": 0.9,
    "milestone": EPOCH // 4,
    "horizon": 12,
}
SCHEDULE = at.ScheduleSpace(
    at.Float(0.005, 0.5, log=True),
    family=at.Choice(("constant", "linear", "cosine", "exponential")),
    final=at.Float(0.01, 1.0, log=True),
    warmup=at.Float(0.0, 0.3),
)


def study(
    lr: Any, trials: int, seed: int, controller: Any = None, **options: Any
) -> at.StudyResult:
    """A study of one learning rate, or of a space of them, one trial after another."""
    fixed = {k: at.Fixed(v) for k, v in SETTING.items()}
    searched = isinstance(lr, at.ScheduleSpace | at.Float)
    space = at.SearchSpace({**fixed, "lr": lr if searched else at.Fixed(lr)})
    options = {"sampler": "tpe" if searched else SamePoint(), "pruner": "none", **options}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        result = at.run(
            at.Experiment("digits", train, space, TARGET),
            trials=trials,
            controller=controller,
            seed=seed,
            out=folder,
            pool=SimPool(partial(live, train, epoch=EPOCH), 1),
            **options,
        )
        file = Path(folder) / weights_file.FILE
        learned = weights_file.read(file).weights if file.is_file() else None
    return at.StudyResult(Path(json.dumps(learned)), TARGET, result.trials)


def score(result: at.StudyResult) -> float:
    """The mean time to the target, the limit for those that did not reach it."""
    return statistics.fmean(t.time_to_target or TARGET.limit for t in result.trials)


def weights(result: at.StudyResult) -> Any:
    return json.loads(str(result.folder))


def wrong(controller: Any, fresh: int) -> list[float]:
    return [round(score(study(LR * by, fresh, 900, controller)), 2) for by in WRONG]


def show(what: str, row: list[float]) -> None:
    cells = "  ".join(f"{x:5.2f}" for x in row)
    print(f"{what:<34} {cells}   mean {statistics.fmean(row):.2f}", flush=True)


def part_wrong(options: argparse.Namespace) -> dict[str, list[float]]:
    found = {}
    settings = {f"regulator({s})": regulator(s) for s in (0.02, 0.04, 0.08)}
    for name, controller in {"constant": None, **settings}.items():
        found[name] = wrong(controller, options.fresh)
        show(name, found[name])
    return found


def part_learned(options: argparse.Namespace) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"constant": [score(study(LR, options.fresh, 900))]}
    show("constant", found["constant"])
    for count in options.trials:
        for name in ("policy", "static"):
            key, row = f"{name}, {count} trials", []
            for seed in range(options.seeds):
                row.append(round(learned(name, count, seed, options.fresh), 2))
            found[key] = row
            show(key, row)
    return found


def learned(name: str, count: int, seed: int, fresh: int) -> float:
    """What `count` trials lead to, on fresh seeds."""
    if name == "static":
        found = study(SCHEDULE, count, seed)
        best = min(found.trials, key=lambda t: TARGET.score(t) or math.inf)
        return score(study(best.config["lr"], fresh, 900))
    made = study(LR, count, seed, policy())
    return score(study(LR, fresh, 900, Linear(weights(made), knobs=("lr",))))


def part_robust(options: argparse.Namespace) -> dict[str, list[float]]:
    found, space = {}, at.Float(LR * WRONG[0], LR * WRONG[-1], log=True)
    for count in options.trials:
        made = study(space, count, 0, policy("robust"), sampler="random")
        controller = replace(policy("robust"), start=weights(made), learns=False, noise=0.0)
        found[f"{count} trials"] = row = wrong(controller, options.fresh)
        show(f"robust, {count} trials", row)
    return found


def part_tasks(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, task in chosen(options).items():
        for by in options.factors:
            first: list[Outcome] = []
            for row, (controller, changed) in steered().items():
                seeds = range(900, 900 + options.fresh)
                made = [outcome(task, task.lr * by, seed, controller, **changed) for seed in seeds]
                found[f"{name}, x{by:g}, {row}"] = made
                show_outcomes(f"{name}, x{by:g}, {row}", made, first := first or made)
    return found


def part_batch(options: argparse.Namespace) -> dict[str, Any]:
    """With four times the limit, as batches that are four times as large may need it."""
    found: dict[str, Any] = {}
    for name, task in chosen(options).items():
        target = replace(task.target, limit=4 * (task.target.limit or 0.0))
        task = replace(task, target=target)
        first: list[Outcome] = []
        for row, (controller, changed) in batches(task).items():
            lr = task.lr * changed.get("lr_factor", 1.0)
            changed = {k: v for k, v in changed.items() if k != "lr_factor"}
            changed["milestone"] = 2 * task.setting["milestone"]
            seeds = range(900, 900 + options.fresh)
            made = [outcome(task, lr, seed, controller, **changed) for seed in seeds]
            found[f"{name}, {row}"] = made
            show_outcomes(f"{name}, {row}", made, first := first or made)
    return found


def chosen(options: argparse.Namespace) -> dict[str, Task]:
    found = {k: v for k, v in tasks(options.data).items() if k in (options.tasks or [k])}
    if options.quick:
        found = {k: replace(v, target=replace(v.target, value=0.9)) for k, v in found.items()}
    return found


def show_outcomes(what: str, made: list[Outcome], first: list[Outcome]) -> None:
    """Means with 95 % intervals, and the ratios to the first row, paired by seed."""
    figures = []
    for number in (0, 1):
        pairs = [(a[number], b[number]) for a, b in zip(made, first, strict=True)]
        mean = statistics.fmean(a for a, _ in pairs)
        low, high = bootstrap(pairs, ratio)
        figures.append(f"{mean:7.2f} ({ratio(pairs):.2f}, {low:.2f} to {high:.2f})")
    count = sum(a.reached for a in made)
    print(f"{what:<40} epochs {figures[0]}  steps {figures[1]}  {count}/{len(made)}", flush=True)


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(a for a, _ in pairs) / sum(b for _, b in pairs)


PARTS = {"wrong": part_wrong, "learned": part_learned, "robust": part_robust} | {
    "tasks": part_tasks,
    "batch": part_batch,
}


def main() -> None:
    global TARGET
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--trials", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--seeds", type=int, default=3, help="studies of each kind")
    parser.add_argument("--fresh", type=int, default=16, help="fresh seeds for each figure")
    parser.add_argument("--factors", nargs="+", type=float, default=[0.1, 1.0, 10.0])
    parser.add_argument("--tasks", nargs="+", help="of mlp, convnet and gpt (all)")
    parser.add_argument("--data", type=Path, help="the data folder, for the task of characters")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.trials, options.seeds, options.fresh = [3], 1, 1
        options.parts, options.factors, options.data = ["learned", "tasks"], [1.0], None
        options.tasks, TARGET = ["mlp"], replace(TARGET, value=0.9)
    torch.set_num_threads(1)
    about = introduce()
    runs = {name: PARTS[name](options) for name in options.parts}
    keep(options.json, about, runs=runs)


if __name__ == "__main__":
    main()
