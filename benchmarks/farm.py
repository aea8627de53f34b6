"""Real training in seconds: small networks on digits and 1-D signals, trained many at once.

    python benchmarks/farm.py --calibrate [--tasks NAMES]   # targets: 5 % of 400 random ones reach
    python benchmarks/farm.py --search [--tasks NAMES]      # the best known time of each task
    python benchmarks/farm.py                               # how long a study of 64 trials takes

A task is a data set, a network and a target accuracy. Nothing of its curves is recorded: a trial
is trained by SGD or LARS while the study runs, in virtual seconds (`step_seconds`), so that no
result depends on the machine. A study runs on `autotune.pools.sim.SimPool`, whose live trials are
trained together; see `_networks.py`.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _common import arguments, introduce, keep
from _networks import METRICS, Farm, Network, Plan
from _signals import Data, load

import autotune as at
from autotune.pools.sim import Curve, Point, SimPool, Simulate

METRIC = METRICS[0]
MILESTONES = 32
WORKERS = 8
Config = Mapping[str, Any]
Params = dict[str, Any]

FOUND: dict[str, tuple[float, float, Params]] = {}
"""Of each task its target (`--calibrate`), best known seconds and their point (`--search`)."""


def step_seconds(batch_size: int) -> float:
    """Virtual seconds of a step: a fixed part and one of the samples, as on a small GPU.

    >>> step_seconds(16), step_seconds(256)
    (1.25, 5.0)
    """
    return 1.0 + batch_size / 64


@dataclass(frozen=True)
class Task:
    """One problem of training fast.

    Args:
        name: what its numbers stand under in `FOUND`.
        data, train, noise, window: what it is trained on; see `_signals.load`.
        widths: of the hidden layers.
        limit: virtual seconds after which a trial is censored.
    """

    name: str
    data: str
    train: int
    noise: float
    window: int
    widths: tuple[int, ...]
    limit: float = 512.0

    def space(self) -> at.SearchSpace:
        """What is searched; the horizon is a share of the limit."""
        rates = at.ScheduleSpace(
            at.Float(1e-3, 10.0, log=True),
            family=at.Choice(("constant", "linear", "cosine", "polynomial", "step")),
            final=0.01,
            warmup=at.Float(0.0, 0.5),
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
        return at.Target(METRIC, FOUND[self.name][0], limit=self.limit)

    def best(self) -> float:
        """The best known virtual seconds to the target: a median over fresh seeds."""
        return FOUND[self.name][1]

    def farm(self) -> Farm:
        """An empty farm for its networks."""
        return Farm(self._load(), self.widths)

    def simulate(self, seed_offset: int = 0) -> Simulate:
        """For a `SimPool`: trains a configuration as its milestones are read.

        `seed_offset` is added to every trial's seed: other initial weights and batches.
        """
        farm = self.farm()

        def run(config: Config, seed: int) -> Curve:
            network = farm.plant(self.plan(config), seed + seed_offset)
            return Curve(self._points(farm, network))

        return run

    def plan(self, config: Config) -> Plan:
        """What a configuration is trained by."""
        each = step_seconds(config["batch_size"])
        stops = [math.ceil((i + 1) * self.limit / MILESTONES / each) for i in range(MILESTONES)]
        progress = np.arange(stops[-1]) * each / (config["horizon"] * self.limit)
        return Plan(
            rates=np.asarray(config["lr"](np.minimum(progress, 1.0))),
            momentum=config["momentum"],
            decay=config["weight_decay"],
            trust=config.get("trust", 0.0),
            batch=config["batch_size"],
            stops=stops,
        )

    def times(self, configs: Sequence[Config], seeds: Sequence[int]) -> list[list[float]]:
        """Seconds to the target of each configuration with each seed, infinite where not met."""
        value = self.target().value
        pairs = [(config, seed) for config in configs for seed in seeds]
        found = [self._first(value, curve) for curve in self._curves(pairs, value)]
        return [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]

    def accuracies(self, configs: Sequence[Config], seed: int) -> np.ndarray:
        """(configurations, milestones)."""
        pairs = [(config, seed) for config in configs]
        curves = list(self._curves(pairs, math.inf))
        return np.array([[point.metrics[METRIC] for point in points] for points in curves])

    def _first(self, value: float, points: Sequence[Point]) -> float:
        met = (p.seconds for p in points if p.metrics[METRIC] >= value)
        first = next(met, math.inf)
        return first if first < self.limit else math.inf

    def _curves(
        self, pairs: Sequence[tuple[Config, int]], value: float
    ) -> Iterator[Sequence[Point]]:
        """Of each pair the milestones until `value`, 64 networks in training at a time."""
        for begin in range(0, len(pairs), 64):
            farm = self.farm()
            plans = [(self.plan(config), seed) for config, seed in pairs[begin : begin + 64]]
            curves = [self._points(farm, farm.plant(plan, seed)) for plan, seed in plans]
            told = [0] * len(curves)
            for i in range(MILESTONES):
                for own, points in enumerate(curves):
                    if told[own] == i and points[i].metrics[METRIC] < value:
                        told[own] = i + 1
            for own, points in zip(told, curves, strict=True):
                yield points[: own + 1]

    def _points(self, farm: Farm, network: Network) -> list[Point]:
        each = step_seconds(network.plan.batch)
        return [
            Point(step, step * each, farm.reading(network, i))
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


# --- what the numbers in FOUND are made by --------------------------------------------------------


def calibrated(task: Task, count: int) -> tuple[float, list[float]]:
    """The accuracy that 5 % of random configurations reach before the limit, and all their best."""
    space = task.space()
    configs = [space.config(point) for point in space.sample(count, seed=101)]
    best = task.accuracies(configs, seed=101)[:, :-1].max(axis=1)  # the last one is at the limit
    return float(np.quantile(best, 0.95)), best.tolist()


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


def searched(task: Task, random: int, guided: int, seeds: int) -> tuple[float, float, Params]:
    """The best known configuration: its median over fresh seeds, the share that reached, its point.

    Random points, then rounds of points near the 16 fastest so far; the 24 fastest are trained
    with `seeds` fresh seeds, and the one of the least median with as many fresh ones again.
    """
    space, rng = task.space(), np.random.default_rng(202)
    points = space.sample(random, seed=202)
    times = [own[0] for own in task.times([space.config(p) for p in points], [202])]
    for number in range(4):
        order = np.argsort(times, kind="stable")[:16]
        fresh = [near(task, points[order[i % 16]], rng) for i in range(guided // 4)]
        found = task.times([space.config(p) for p in fresh], [203 + number])
        points, times = points + fresh, times + [own[0] for own in found]
    finalists = [points[i] for i in np.argsort(times, kind="stable")[:24]]
    again = task.times([space.config(p) for p in finalists], range(1000, 1000 + seeds))
    winner = finalists[int(np.argmin([statistics.median(own) for own in again]))]
    last = task.times([space.config(winner)], range(2000, 2000 + seeds))[0]
    return statistics.median(last), sum(map(math.isfinite, last)) / seeds, winner


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
        target, best = calibrated(task, 16 if quick else 400)
        quantiles = [round(float(np.quantile(best, q)), 4) for q in (0.5, 0.8, 0.9, 0.98, 1.0)]
        rows.append({"task": task.name, "target": target, "quantiles": quantiles})
        took = time.process_time() - begin
        print(f"{task.name:>22} target {target:.4f}; {quantiles} {took:.0f} s", flush=True)
    return rows


def _search(chosen: Sequence[Task], quick: bool) -> list[dict[str, Any]]:
    rows = []
    for task in chosen:
        begin = time.process_time()
        sizes = (16, 8, 3) if quick else (512, 256, 15)
        best, share, params = searched(task, *sizes)
        rows.append({"task": task.name, "best": best, "share": share, "params": params})
        took = time.process_time() - begin
        print(f"{task.name:>22} {best:7.2f} s ({share:.0%}) {params} {took:.0f} s", flush=True)
    return rows


def _costs(chosen: Sequence[Task], quick: bool) -> list[dict[str, Any]]:
    rows = []
    for task in chosen:
        for pruner in ("none", "slower_than_best"):
            row = study_cost(task, 8 if quick else 64, pruner, seed=0)
            rows.append({**row, "pruner": pruner})
            told = (f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in row.items())
            print(f"{pruner:>17}", "; ".join(told), flush=True)
    return rows


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--calibrate", action="store_true", help="find each task's target")
    parser.add_argument("--search", action="store_true", help="find each task's best known time")
    parser.add_argument("--tasks", help="some of the tasks, separated by commas")
    options = parser.parse_args()
    names = options.tasks.split(",") if options.tasks else [t.name for t in _TASKS]
    chosen = [task for task in _TASKS if task.name in names]
    about = introduce()
    work = _calibrate if options.calibrate else _search if options.search else _costs
    rows = work(chosen[:1] if options.quick else chosen, options.quick)
    keep(options.json, about, runs=rows)


if __name__ == "__main__":
    main()
