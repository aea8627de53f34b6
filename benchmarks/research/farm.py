"""Real training in seconds: small networks on digits and 1-D signals, trained many at once.

    python benchmarks/research/farm.py [--tasks NAMES]              # time of a study of 64 trials
    python benchmarks/research/farm.py --calibrate [--tasks NAMES]  # targets, best times: `KNOWN`

A task is a data set, a network and a target accuracy. Nothing of its curves is recorded: a trial
is trained by SGD or LARS while the study runs, in virtual seconds (`step_seconds`), so that no
result depends on the machine. A study runs on `backends.simulator.SimPool`, whose live trials are
trained together; see `_networks.py`.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from _networks import METRICS, Farm, Network, Plan
from _shared import arguments, introduce, keep
from _signals import Data, load

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool, Simulate

METRIC = METRICS[0]
MILESTONES = 32
WORKERS = 8
Config = Mapping[str, Any]
Params = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """What `python benchmarks/research/farm.py --calibrate` found of a task.

    Args:
        target: the accuracy that 5 % of 400 random configurations reach within the limit.
        best: the least virtual seconds to it that are known, a median over fresh seeds.
        point: the point of the space that takes so long.
    """

    target: float
    best: float
    point: Params


KNOWN: dict[str, Known] = {
    "digits": Known(
        0.9716,
        177.0,
        {
            "lr.family": "polynomial",
            "lr.peak": 0.103181,
            "lr.warmup": 0.0,
            "momentum": 0.518229,
            "weight_decay": 0.000449153,
            "horizon": 0.391428,
            "batch_size": 128,
            "optimizer": "lars",
            "trust": 0.488986,
        },
    ),
    "digits-few": Known(
        0.943,
        96.25,
        {
            "lr.family": "polynomial",
            "lr.peak": 0.152772,
            "lr.warmup": 0.181052,
            "momentum": 0.495361,
            "weight_decay": 0.0182138,
            "horizon": 0.186846,
            "batch_size": 16,
            "optimizer": "lars",
            "trust": 0.750605,
        },
    ),
    "digits-wrong-labels": Known(
        0.9497,
        160.0,
        {
            "lr.family": "polynomial",
            "lr.peak": 0.731911,
            "lr.warmup": 0.227538,
            "momentum": 0.460497,
            "weight_decay": 0.00490768,
            "horizon": 0.392882,
            "batch_size": 64,
            "optimizer": "sgd",
        },
    ),
    "digits-deep": Known(
        0.9732,
        210.0,
        {
            "lr.family": "polynomial",
            "lr.peak": 0.250859,
            "lr.warmup": 0.335955,
            "momentum": 0.770705,
            "weight_decay": 0.00773472,
            "horizon": 0.268156,
            "batch_size": 128,
            "optimizer": "lars",
            "trust": 0.276446,
        },
    ),
    "signals": Known(
        0.523,
        192.0,
        {
            "lr.family": "cosine",
            "lr.peak": 0.864442,
            "lr.warmup": 0.242325,
            "momentum": 0.724954,
            "weight_decay": 0.00543655,
            "horizon": 0.281487,
            "batch_size": 128,
            "optimizer": "sgd",
        },
    ),
    "signals-windows": Known(
        0.6651,
        192.0,
        {
            "lr.family": "cosine",
            "lr.peak": 0.372675,
            "lr.warmup": 0.26949,
            "momentum": 0.772584,
            "weight_decay": 0.000112709,
            "horizon": 0.304802,
            "batch_size": 32,
            "optimizer": "sgd",
        },
    ),
    "signals-windows-deep": Known(
        0.6122,
        240.0,
        {
            "lr.family": "cosine",
            "lr.peak": 0.67537,
            "lr.warmup": 0.128775,
            "momentum": 0.547238,
            "weight_decay": 0.000227612,
            "horizon": 0.402834,
            "batch_size": 64,
            "optimizer": "sgd",
        },
    ),
    "signals-noisy": Known(
        0.45,
        168.0,
        {
            "lr.family": "cosine",
            "lr.peak": 0.5929,
            "lr.warmup": 0.0949016,
            "momentum": 0.624332,
            "weight_decay": 1.41223e-05,
            "horizon": 0.378281,
            "batch_size": 64,
            "optimizer": "sgd",
        },
    ),
}


def step_seconds(batch_size: int) -> float:
    """Virtual seconds of a step: a fixed part and one of the samples, as on a small GPU.

    >>> step_seconds(16), step_seconds(256)
    (1.25, 5.0)
    """
    return 1.0 + batch_size / 64


def _stops(limit: float, each: float) -> list[int]:
    """Steps made at each milestone: the first step that ends after each 32nd of the limit."""
    return [math.ceil((i + 1) * limit / MILESTONES / each) for i in range(MILESTONES)]


@dataclass(frozen=True)
class Task:
    """One problem of training fast.

    Args:
        name: what its numbers stand under in `KNOWN`.
        data, train, noise, window: what it is trained on; see `_signals.load`.
        widths: of the hidden layers.
        limit: virtual seconds after which a trial is censored.
        goal: another target than the known one.
    """

    name: str
    data: str
    train: int
    noise: float
    window: int
    widths: tuple[int, ...]
    limit: float = 512.0
    goal: float | None = None

    def space(self, effective: bool = False) -> at.SearchSpace:
        """What is searched; the horizon is a share of the limit.

        `effective`: peaks are those of lr / (1 - momentum), over as many decades.
        """
        rates = at.ScheduleSpace(
            at.Float(1e-2, 1e2, log=True) if effective else at.Float(1e-3, 10.0, log=True),
            family=at.Choice(("constant", "linear", "cosine", "polynomial", "step")),
            final=0.01,
            warmup=at.Float(0.0, 0.5),
            effective="momentum" if effective else None,
        )
        return at.SearchSpace(
            {
                "lr": rates,
                "momentum": at.Float(0.0, 0.99),
                "weight_decay": at.Float(1e-6, 1e-1, log=True),
                "horizon": at.Float(0.1, 1.0, log=True),
                "batch_size": at.Int(16, 256, log=True, power_of_two=True),
                "optimizer": at.Choice(("sgd", "lars")),
                "trust": at.Float(1e-3, 1.0, log=True, when={"optimizer": "lars"}),
            }
        )

    def target(self) -> at.Target:
        """The accuracy that about 5 % of random configurations reach within the limit."""
        return at.Target(METRIC, self.goal or KNOWN[self.name].target, limit=self.limit)

    def best(self) -> float:
        """The best known virtual seconds to the target: a median over fresh seeds."""
        return KNOWN[self.name].best

    def best_point(self) -> Params:
        """The point of the space that got there in `best` seconds."""
        return dict(KNOWN[self.name].point)

    def farm(self) -> Farm:
        """An empty farm for its networks."""
        return Farm(self._load(), self.widths)

    def simulate(self, seed_offset: int = 0, farm: Farm | None = None) -> Simulate:
        """For a `SimPool`: trains a configuration as its milestones are reported.

        `seed_offset` is added to every trial's seed: other initial weights and batches. A `farm` of
        one's own, this task's, counts in `steps_made` what the trials have cost.
        """
        farm = farm or self.farm()

        def run(config: Config, seed: int) -> SimCurve:
            network = farm.plant(self.plan(config), seed + seed_offset)
            return SimCurve(self._points(farm, network))

        return run

    def plan(self, config: Config) -> Plan:
        """What a configuration is trained by."""
        each = step_seconds(config["batch_size"])
        stops = _stops(self.limit, each)
        progress = np.arange(stops[-1]) * each / (config["horizon"] * self.limit)
        return Plan(
            rates=np.asarray(config["lr"](np.minimum(progress, 1.0))),
            momentum=config["momentum"],
            decay=config["weight_decay"],
            trust=config.get("trust", 0.0),
            batch=config["batch_size"],
            stops=stops,
            horizon=config["horizon"] * self.limit / each,
        )

    def times(self, configs: Sequence[Config], seeds: Sequence[int]) -> list[list[float]]:
        """Seconds to the target of each configuration with each seed, infinite where not met."""
        value = self.target().value
        pairs = [(config, seed) for config in configs for seed in seeds]
        found = []
        for (config, _), points in zip(pairs, self._curves(pairs, value), strict=True):
            accuracies = [point.metrics[METRIC] for point in points]
            found.append(self.first(config, accuracies))
        return [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]

    def accuracies(self, configs: Sequence[Config], seed: int) -> np.ndarray:
        """(configurations, milestones)."""
        pairs = [(config, seed) for config in configs]
        curves = list(self._curves(pairs, math.inf))
        return np.array([[point.metrics[METRIC] for point in points] for points in curves])

    def first(self, params: Config, accuracies: Sequence[float]) -> float:
        """Seconds of the first milestone that met the target before the limit, or infinite."""
        met = (i for i, value in enumerate(accuracies) if value >= self.target().value)
        i = next(met, MILESTONES - 1)
        each = step_seconds(params["batch_size"])
        seconds = _stops(self.limit, each)[i] * each
        return seconds if seconds < self.limit else math.inf

    def _curves(
        self, pairs: Sequence[tuple[Config, int]], value: float
    ) -> Iterator[Sequence[SimPoint]]:
        """Of each pair the milestones until `value`, 64 networks in training at a time."""
        for begin in range(0, len(pairs), 64):
            farm = self.farm()
            plans = [(self.plan(config), seed) for config, seed in pairs[begin : begin + 64]]
            curves = [self._points(farm, farm.plant(plan, seed)) for plan, seed in plans]
            asked = [0] * len(curves)
            for i in range(MILESTONES):
                for own, points in enumerate(curves):
                    if asked[own] == i and points[i].metrics[METRIC] < value:
                        asked[own] = i + 1
            for own, points in zip(asked, curves, strict=True):
                yield points[: own + 1]

    def _points(self, farm: Farm, network: Network) -> list[SimPoint]:
        each = step_seconds(network.plan.batch)
        return [
            SimPoint(step, step * each, farm.reading(network, i))
            for i, step in enumerate(network.plan.stops)
        ]

    def _load(self) -> Data:
        return load(self.data, self.train, self.noise, self.window)


_TASKS = (
    Task("digits", "digits", 1200, 0.0, 0, (32,)),
    Task("digits-few", "digits", 300, 0.0, 0, (64,)),
    Task("digits-wrong-labels", "digits", 1200, 0.2, 0, (32,)),
    Task("digits-deep", "digits", 1200, 0.0, 0, (32, 32)),
    Task("signals", "signals", 2000, 0.3, 0, (64,), 768.0),
    Task("signals-windows", "signals", 2000, 0.3, 8, (16,), 768.0),
    Task("signals-windows-deep", "signals", 2000, 0.3, 8, (16, 32), 768.0),
    Task("signals-noisy", "signals", 1000, 0.8, 8, (16,), 768.0),
)


def tasks() -> list[Task]:
    """All tasks."""
    return list(_TASKS)


# --- what the numbers above are made by --------------------------------------------------------


def calibrated(task: Task, random: int, guided: int, seeds: int) -> dict[str, Any]:
    """A task's target, and its best known configuration.

    The target is the accuracy that 5 % of `random` points reach before the limit. Then come four
    rounds of points near the 16 fastest so far, `guided` in all; the 24 fastest are trained with
    `seeds` fresh seeds, and the one of the least median with as many fresh ones again: its median
    is the best known time.
    """
    space, rng = task.space(), np.random.default_rng(101)
    points = space.sample(random, seed=101)
    curves = task.accuracies([space.config(p) for p in points], seed=101)
    reached = curves[:, :-1].max(axis=1)  # the last milestone is at the limit
    task = replace(task, goal=math.floor(1e4 * np.quantile(reached, 0.95)) / 1e4)
    times = [task.first(p, own) for p, own in zip(points, curves, strict=True)]
    for number in range(4):
        order = np.argsort(times, kind="stable")[:16]
        fresh = [near(task, points[order[i % 16]], rng) for i in range(guided // 4)]
        found = task.times([space.config(p) for p in fresh], [102 + number])
        points, times = points + fresh, times + [own[0] for own in found]
    finalists = [points[i] for i in np.argsort(times, kind="stable")[:24]]
    again = task.times([space.config(p) for p in finalists], range(1000, 1000 + seeds))
    winner = finalists[int(np.argmin([statistics.median(own) for own in again]))]
    (last,) = task.times([space.config(winner)], range(2000, 2000 + seeds))
    return {
        "task": task.name,
        "target": task.goal,
        "random_reached": float(np.mean(np.isfinite(times[:random]))),
        "random_best": min(times[:random]),
        "best": statistics.median(last),
        "best_reached": sum(map(math.isfinite, last)) / seeds,
        "point": winner,
    }


def near(task: Task, params: Params, rng: np.random.Generator) -> Params:
    """A point like `params`: numbers moved by a tenth of their range, one choice in ten redrawn."""

    def draw(name: str, parameter: Any) -> Any:
        old = params.get(name)
        if isinstance(parameter, at.Choice):
            stays = old is not None and rng.random() < 0.9
            return old if stays else parameter.options[rng.integers(len(parameter.options))]
        low, high = parameter.low, parameter.high
        ends = np.log([low, high]) if parameter.log else np.array([low, high], dtype=float)
        place = rng.random()
        if old is not None:
            value = math.log(old) if parameter.log else old
            place = (value - ends[0]) / (ends[1] - ends[0]) + 0.1 * rng.standard_normal()
        value = float(ends[0] + min(max(place, 0.0), 1.0) * (ends[1] - ends[0]))
        value = min(max(math.exp(value) if parameter.log else value, low), high)
        return 2 ** round(math.log2(value)) if isinstance(parameter, at.Int) else value

    return task.space().suggest(draw)


def study_cost(task: Task, trials: int, pruner: str, seed: int) -> dict[str, Any]:
    """CPU seconds of a random search, with what it trained and found."""
    begin, folder = time.process_time(), tempfile.TemporaryDirectory()
    pool = SimPool(task.simulate(), WORKERS)
    experiment = at.Experiment(f"farm-{task.name}", _nothing, task.space(), task.target())
    with folder:
        result = at.run(
            experiment,
            trials=trials,
            sampler="random",
            pruner=pruner,
            pool=pool,
            out=Path(folder.name, "study"),
            seed=seed,
            tracking_uri="off",
        )
    spent = sum(trial.seconds for trial in result.trials)
    return {
        "task": task.name,
        "cpu_seconds": time.process_time() - begin,
        "virtual_seconds": spent,
        "reached": sum(trial.state is at.trial.State.REACHED for trial in result.trials),
        "best": result.best.seconds if result.best else None,
    }


def _nothing(config: Config) -> Any:
    """Stands for a trainer where none is run."""


def _calibrate(chosen: Sequence[Task], quick: bool) -> list[dict[str, Any]]:
    rows = []
    for task in chosen:
        begin = time.process_time()
        row = calibrated(task, *((24, 8, 3) if quick else (400, 256, 15)))
        took = time.process_time() - begin
        print(*(f"{k} {v}" for k, v in row.items()), f"took {took:.0f} s", sep="; ", flush=True)
        rows.append({**row, "cpu_seconds": took})
    return rows


def _costs(chosen: Sequence[Task], quick: bool) -> list[dict[str, Any]]:
    rows = []
    for task in chosen:
        for pruner in ("none", "slower_than_best"):
            row = study_cost(task, 8 if quick else 64, pruner, seed=0)
            rows.append({**row, "pruner": pruner})
            cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in row.items())
            print(f"{pruner:>17}", "; ".join(cells), flush=True)
    return rows


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--calibrate", action="store_true", help="find targets and best times")
    parser.add_argument("--tasks", help="some of the tasks, separated by commas")
    options = parser.parse_args()
    names = options.tasks.split(",") if options.tasks else [t.name for t in _TASKS]
    chosen = [task for task in _TASKS if task.name in names]
    about = introduce()
    work = _calibrate if options.calibrate else _costs
    rows = work(chosen[:1] if options.quick else chosen, options.quick)
    keep(options.json, about, runs=rows)


if __name__ == "__main__":
    main()
