"""Tasks of the farm whose steps take what plans were measured to take, on a virtual clock.

A step of a network takes `SCALE` times the seconds that `plan_speeds.json` has for the plan and
the batch size, so that a trial of a few hundred steps takes the 30 s that it may. All else is real:
the networks train while the study runs, one at a time. Plans change nothing but seconds here: what
bf16 does to learning is left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any

import farm
import numpy as np
from _alone import Alone
from _networks import Plan
from plan_speeds import DEFAULT, VALUES, Speeds

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, Simulate

METRIC = farm.METRIC
TASKS = ("digits", "digits-wrong-labels", "digits-deep", "signals")
LIMIT = 30.0
SCALE = 4.0
SETUP = 1.0  # seconds of any trial before it trains
COMPILED_BEFORE = 2.0  # more, where the cache on disk has the step (1.3 and 2.9 s were measured)
BLOCK, RUN = 0.03, 0.02  # standard deviations of logarithms: of a milestone's seconds, of a trial's
FRESH, SEEDS = 9000, 5  # the first seed of those that judge a configuration, and how many they are
Config = Mapping[str, Any]
BASELINE: Config = {
    "lr.family": "cosine",
    "lr.peak": 0.1,
    "lr.warmup": 0.05,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "horizon": 1.0,
    "batch_size": 64,
    "optimizer": "sgd",
}
"""What a person might take, for as many steps as the limit allows with the default plan."""


def learn(config: dict[str, Any]) -> Iterator[Any]:
    """Stands for the trainer, which is not run."""
    yield from ()


learn.effects = {  # type: ignore[attr-defined]
    **dict.fromkeys(("lr", "momentum", "weight_decay", "horizon", "trust"), "statistical"),
    **dict.fromkeys(("batch_size", "optimizer"), "both"),
    **dict.fromkeys(VALUES, "exact"),
    "precision": "rounding",
}


@dataclass
class Problem:
    """A task of the farm with a searched plan.

    Args:
        task: of the farm.
        plan: that of the baseline.
    """

    task: farm.Task
    plan: Config = field(default_factory=lambda: dict(DEFAULT))
    _needs: dict[str, list[float]] = field(default_factory=dict)

    @cached_property
    def speeds(self) -> Speeds:
        return Speeds.read()

    @cached_property
    def samples(self) -> int:
        """Of a milestone: a 32nd of what the default trains within the limit."""
        return round(LIMIT / self._step(DEFAULT, 64) * 64 / farm.MILESTONES)

    @cached_property
    def target(self) -> float:
        """What the baseline has reached after 40 % of its horizon, the median over fresh seeds."""
        config = self.config({**BASELINE, **DEFAULT})
        last = round(0.4 * farm.MILESTONES)
        curves = [self._accuracies(config, FRESH - 1 - i, last) for i in range(9)]
        return float(statistics.median(max(curve) for curve in curves))

    def space(self, searched: bool = True) -> at.SearchSpace:
        """Learning and, if it is `searched`, the plan; else the baseline's."""
        plan = {n: at.Choice(v) if searched else at.Fixed(self.plan[n]) for n, v in VALUES.items()}
        entries = {**self.task.space().entries, **plan, "milestone": at.Fixed(self.samples)}
        return at.SearchSpace(entries)

    def config(self, point: Config) -> Config:
        return self.space().config(self.space().complete(point)[1])

    def experiment(self, searched: bool = True) -> at.Experiment:
        """The search from the baseline."""
        plan = self.plan if searched else {}
        target = at.Target(METRIC, self.target, limit=LIMIT)
        baseline = {**BASELINE, **plan}
        return at.Experiment(self.task.name, learn, self.space(searched), target, baseline=baseline)

    @cached_property
    def fastest(self) -> Config:
        """The plan of the shortest steps at the baseline's batch size."""
        return self.speeds.fastest(64)

    def _step(self, plan: Config, batch_size: float) -> float:
        return SCALE * self.speeds.step(plan, batch_size)

    def study(self) -> Simulate:
        """For the `SimPool` of one study, in which a step is compiled once for a batch size."""
        compiled: set[str] = set()

        def simulate(config: Config, seed: int) -> SimCurve:
            plan = {name: config[name] for name in VALUES}
            made = f"{plan} {config['batch_size']}"
            spent = self.speeds.setup(plan)
            if made in compiled:
                spent = min(spent, COMPILED_BEFORE)
            compiled.add(made)
            return replace(self.curve(config, seed), setup_seconds=SETUP + spent)

        return simulate

    def curve(self, config: Config, seed: int) -> SimCurve:
        """A training, or a probe, which has shorter milestones and no metrics; without set-up."""
        batch_size, samples, random = config["batch_size"], config["milestone"], Random(seed)
        plan = {name: config[name] for name in VALUES}
        each = self._step(plan, batch_size) * math.exp(random.gauss(0, RUN))
        stops = self._stops(config, LIMIT / each)
        points, seconds, before = [SimPoint(0, 0.0, {})], 0.0, 0
        readings: Sequence[Mapping[str, float]] = [{METRIC: 0.0}] * len(stops)
        if samples == self.samples:
            own = self._farm.plant(self._trained(config, stops), seed)
            readings = [self._farm.reading(own, i) for i in range(len(stops))]
        for stop, reading in zip(stops, readings, strict=True):
            seconds += (stop - before) * each * math.exp(random.gauss(0, BLOCK))
            before = stop
            points.append(SimPoint(stop * batch_size, seconds, reading))
        return SimCurve(points)

    @cached_property
    def _farm(self) -> Alone:
        return Alone(self.task._load(), self.task.widths)

    def _stops(self, config: Config, steps: float) -> list[int]:
        """Steps made at each milestone, one more than fits into so many."""
        each, batch_size = config["milestone"], config["batch_size"]
        count = math.ceil(steps * batch_size / each) + 2
        return [math.ceil((i + 1) * each / batch_size) for i in range(count)]

    def _trained(self, config: Config, stops: Sequence[int]) -> Plan:
        horizon = config["horizon"] * self.samples * farm.MILESTONES / config["batch_size"]
        progress = np.minimum(np.arange(stops[-1]) / horizon, 1.0)
        return Plan(
            rates=np.asarray(config["lr"](progress)),
            momentum=config["momentum"],
            decay=config["weight_decay"],
            trust=config.get("trust", 0.0),
            batch=config["batch_size"],
            stops=stops,
            horizon=horizon,
        )

    # --- what a configuration is worth ----------------------------------------------------------

    def seconds(self, config: Config) -> float:
        """Mean seconds to the target on fresh seeds, of which none is disturbed; a miss counts as
        the limit."""
        each = self._step({n: config[n] for n in VALUES}, config["batch_size"])
        needed = self.needed(config)
        return statistics.fmean(min(n / config["batch_size"] * each, LIMIT) for n in needed)

    def needed(self, config: Config) -> list[float]:
        """Samples to the target with each fresh seed; infinite where the fastest plan misses it."""
        key = repr(sorted((n, str(v)) for n, v in config.items() if n not in VALUES))
        if key not in self._needs:
            own = (self._samples(config, FRESH + i) for i in range(SEEDS))
            self._needs[key] = list(own)
        return self._needs[key]

    def _samples(self, config: Config, seed: int) -> float:
        batch_size = config["batch_size"]
        stops = self._stops(config, LIMIT / self._step(self.fastest, batch_size))
        network = self._farm.plant(self._trained(config, stops), seed)
        for i, stop in enumerate(stops):
            if self._farm.measured(network, i)[0] >= self.target:
                return float(stop * batch_size)
        return math.inf

    def _accuracies(self, config: Config, seed: int, milestones: int) -> list[float]:
        stops = self._stops(config, LIMIT / self._step(DEFAULT, config["batch_size"]))
        network = self._farm.plant(self._trained(config, stops), seed)
        return [self._farm.measured(network, i)[0] for i in range(milestones)]


def problem(number: int, settled: bool = False) -> Problem:
    """That of a pair.

    Args:
        settled: whether the baseline has the fastest plan already, so that no probe is worth it.
    """
    name = TASKS[number % len(TASKS)]
    made = Problem(next(task for task in farm.tasks() if task.name == name))
    if settled:
        made.plan = made.fastest
    return made
