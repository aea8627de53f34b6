"""Whether the controller `policy` gains from weights that were trained on other tasks.

    python benchmarks/research/controller_start.py --json FILE       (AUTOTUNE_DATA: Fashion-MNIST)
    python benchmarks/research/controller_start.py --train autotune/data

Real training of small networks in this process; a trial's seconds are the epochs that it has
trained, so that a busy machine changes nothing. Tasks are a data set and a width. The data set
under test is left out: weights come from studies of the other two, over learning rates of two
decades. Then, for each task of that data set and each wrong learning rate, studies of a few trials
with the controller from these weights and from nothing (`robust`: from the regulator), and what
they lead to on fresh seeds, without noise or further learning. A number below is the mean time to
the target, the limit for trials that missed it; a ratio above 1 is in favour of the trained start.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _live import live
from _shared import introduce, keep
from _signals import signals

import autotune as at
from autotune.algorithms.controllers import policy, regulator, weights_file
from autotune.algorithms.controllers.features import FEATURES
from autotune.algorithms.controllers.learning import awr
from autotune.algorithms.controllers.linear import Linear, episode, values_of
from autotune.backends.simulator import SimPool
from autotune.evaluation.export.replay import SamePoint
from trainers.data import images as data
from trainers.data.formats import Arrays

Weights = Mapping[str, Mapping[str, float]]
FACTORS = (0.1, 0.32, 1.0, 3.2, 10.0)
LIMIT = 12.0
ROBUST = policy("robust", setpoint=0.04)
"""From nothing: its first weights are the regulator's."""
SIZES = {"digits": (1078, 719), "signals": (3000, 500), "fashion_mnist": (2000, 1000)}


def _signals(folder: Path) -> Arrays:
    """Signals of 40 numbers as grey images of 7x7, the last numbers 0."""
    parts = (signals(size, 0.3, seed) for seed, size in enumerate(SIZES["signals"], 2))
    padded = [(np.pad(x, ((0, 0), (0, 9))).reshape(-1, 7, 7, 1), y) for x, y in parts]
    (train, train_y), (val, val_y) = padded
    return train, train_y, val, val_y


data.READERS["signals"] = _signals  # before the trainer reads which there are
data.KNOWN["signals"] = data.Known(7, 1, *SIZES["signals"], 4)

from trainers.image import train  # noqa: E402


@dataclass(frozen=True)
class Task:
    """A data set and a width, the accuracy to reach, and the best constant rate of a grid."""

    data: str
    width: int
    target: float
    lr: float

    @property
    def aim(self) -> at.Target:
        return at.Target("val_accuracy", self.target, limit=LIMIT)

    @property
    def epoch(self) -> int:
        return SIZES[self.data][0]

    def setting(self) -> dict[str, Any]:
        own = {"data": self.data, "width": self.width, "train_size": self.epoch}
        own |= {"val_size": SIZES[self.data][1], "milestone": self.epoch // 4}
        return {**own, "model": "mlp", "batch_size": 64, "momentum": 0.9, "horizon": 12}


TASKS = [
    Task("digits", 32, 0.955, 0.1),
    Task("digits", 128, 0.97, 0.1),
    Task("signals", 32, 0.56, 0.1),
    Task("signals", 128, 0.7, 0.1),
    Task("fashion_mnist", 32, 0.815, 0.03),
    Task("fashion_mnist", 128, 0.822, 0.03),
]
"""Their targets: a little below what the best constant rate has after seven epochs."""


def study(
    task: Task, lr: Any, trials: int, seed: int, controller: Any = None
) -> tuple[at.StudyResult, Weights]:
    """A study of one learning rate, or of a space of schedules, one trial after another."""
    searched = isinstance(lr, at.ScheduleSpace)
    fixed = {k: at.Fixed(v) for k, v in task.setting().items()}
    space = at.SearchSpace({**fixed, "lr": lr if searched else at.Fixed(lr)})
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        result = at.run(
            at.Experiment("start", train, space, task.aim),
            trials=trials,
            controller=controller,
            sampler="tpe" if searched else SamePoint(),
            pruner="none",
            seed=seed,
            out=folder,
            pool=SimPool(partial(live, train, epoch=task.epoch), 1),
        )
        file = Path(folder) / weights_file.FILE
        return result, weights_file.read(file).weights if file.is_file() else {}


def score(task: Task, lr: Any, fresh: int, controller: Any = None) -> float:
    """The mean time to the target on fresh seeds, the limit for those that did not reach it."""
    trials = study(task, lr, fresh, 900, controller)[0].trials
    return statistics.fmean(t.time_to_target or LIMIT for t in trials)


def fixed(weights: Weights) -> Linear:
    """A controller with these weights, which does not learn."""
    return replace(ROBUST, start=weights, learns=False, noise=0.0)


def trained(tasks: Sequence[Task], trials: int, rounds: int) -> Weights:
    """Weights fitted by advantage-weighted regression to studies of all these tasks and rates.

    A trial is compared with those of its own study only.
    """
    weights = ROBUST.start
    for number in range(rounds):
        episodes = []
        for task in tasks:
            for factor in FACTORS:
                controller = replace(ROBUST, start=weights, learns=False)
                found = study(task, task.lr * factor, trials, 100 + number, controller)[0].trials
                ended = [t for t in found if len(t.changes) > 1]
                values = values_of(ended, task.aim)
                episodes += [
                    replace(episode(t, ("lr",), task.aim), value=values[t.number]) for t in ended
                ]
        before = np.array([[weights["lr"].get(name, 0.0) for name in FEATURES]])
        after = awr(before, episodes)[0]
        weights = {"lr": {name: float(x) for name, x in zip(FEATURES, after, strict=True)}}
    return weights


def rows(task: Task, start: Weights, seed: int, trials: int, fresh: int) -> list[dict[str, Any]]:
    """Figures of every learning rate; `static` is the best schedule of a search of two decades."""
    low, high = task.lr * FACTORS[0], task.lr * FACTORS[-1]
    schedules = at.ScheduleSpace(
        at.Float(low, high, log=True),
        family=at.Choice(("constant", "linear", "cosine", "exponential")),
        final=at.Float(0.01, 1.0, log=True),
        warmup=at.Float(0.0, 0.3),
    )
    found = study(task, schedules, trials, seed)[0].trials
    best = min(found, key=lambda t: task.aim.score(t) or math.inf)
    static, made = score(task, best.config["lr"], fresh), []
    for factor in FACTORS:
        lr = task.lr * factor
        after = {
            "from nothing": study(task, lr, trials, seed, ROBUST)[1],
            "from trained": study(task, lr, trials, seed, replace(ROBUST, start=start))[1],
        }
        row = {name: score(task, lr, fresh, fixed(w)) for name, w in after.items()}
        row["trained, no study"] = score(task, lr, fresh, fixed(start))
        row["regulator"] = score(task, lr, fresh, regulator())
        row["constant"], row["static"] = score(task, lr, fresh), static
        if factor == 1:
            weights = study(task, lr, trials, seed, policy())[1]
            row["specialist"] = score(task, lr, fresh, replace(fixed(weights), warmup=0.05))
        made.append({"data": task.data, "width": task.width, "factor": factor, "seed": seed, **row})
        print(
            "  ".join(f"{k} {v:.4g}" if v != task.data else v for k, v in made[-1].items()),
            flush=True,
        )
    return made


def calibrated() -> None:
    """For each task, the accuracies after the seventh epoch of constant rates: for `TASKS`."""
    for task in TASKS:
        grid = {}
        for lr in (0.003, 0.01, 0.03, 0.1, 0.3):
            found = study(replace(task, target=2.0), lr, 3, 0)[0].trials
            at_seven = [max(r.metrics["val_accuracy"] for r in t.reports if 0 < r.seconds <= 7)
                        for t in found]  # fmt: skip
            grid[lr] = round(statistics.fmean(at_seven), 4)
        print(task.data, task.width, grid, flush=True)


def summary(made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means of each column, and of its ratio over `from trained`, with 95 % intervals."""
    rng, found = np.random.default_rng(0), {}
    for name in [k for k in made[0] if k not in ("data", "width", "factor", "seed")] + [
        "specialist"
    ]:
        own = [row for row in made if name in row]
        if not own:
            continue
        logs = np.log([row[name] / row["from trained"] for row in own])
        means = logs[rng.integers(0, len(logs), (10_000, len(logs)))].mean(axis=1)
        low, high = np.exp(np.quantile(means, (0.025, 0.975)))
        found[name] = {
            "epochs": round(statistics.fmean(row[name] for row in own), 2),
            "over from trained": [round(float(x), 3) for x in (np.exp(logs.mean()), low, high)],
            "studies": len(own),
        }
    return found


def main() -> None:
    global FACTORS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", choices=SIZES, default=list(SIZES), help="left out")
    parser.add_argument("--trials", type=int, default=16, help="of each study under test")
    parser.add_argument("--seeds", type=int, default=1, help="studies of each kind")
    parser.add_argument("--fresh", type=int, default=5, help="fresh seeds for each figure")
    parser.add_argument("--sources", type=int, default=5, help="trials of a study trained from")
    parser.add_argument("--rounds", type=int, default=2, help="fits, each after new studies")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument(
        "--train", type=Path, metavar="FOLDER", help="write weights of all data sets"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about, tasks = introduce(), TASKS
    if options.quick:
        tasks = [replace(task, target=0.5) for task in TASKS if task.width == 32][:2]
        options.data, options.trials, options.fresh = ["digits"], 2, 1
        options.sources, options.rounds = 3, 1
        FACTORS = (1.0, 3.2)
    if options.calibrate:
        calibrated()
        return
    if options.train is not None:
        weights = trained(tasks, options.sources, options.rounds)
        rounded = {k: {n: round(x, 6) for n, x in row.items()} for k, row in weights.items()}
        what = {"learner": "awr", "features": dict(FEATURES), "weights": rounded}
        weights_file.write(options.train, "controller_start.py", what)
        return
    made: list[dict[str, Any]] = []
    starts = {}
    for name in options.data:
        others = [task for task in tasks if task.data != name]
        starts[name] = trained(others, options.sources, options.rounds)
        print(f"without {name}: {starts[name]['lr']}", flush=True)
        for task in tasks:
            if task.data == name:
                for seed in range(options.seeds):
                    made += rows(task, starts[name], seed, options.trials, options.fresh)
    found = summary(made)
    for name, figures in found.items():
        print(name, figures)
    keep(options.json, about, runs=made, starts=starts, summary=found)


if __name__ == "__main__":
    main()
