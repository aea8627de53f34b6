"""Studies of recorded tasks through the driver, whose samplers know half of the other tasks."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import search

import autotune as at
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import KnownTask
from autotune.algorithms.experience.model import useful
from autotune.algorithms.samplers.convergence import ConvergenceSampler
from autotune.algorithms.samplers.experienced import ExperiencedSampler
from autotune.algorithms.samplers.trained_policy import network
from autotune.algorithms.samplers.trained_policy.sampler import TrainedPolicySampler
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.evaluation.policy_training import tables
from autotune.trial import Config, State

TRIALS, SPEND = 60, 20.0  # the most trials of a study, and limits of spend
SOURCE_ROWS = 300
Make = Callable[[int, int], Any]  # of a task and a seed: a sampler, or its name


class Timed:
    """A sampler whose processor time is measured."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.seconds, self.asks = sampler, 0.0, 0

    def ask(self, number: int, trials: Sequence[at.Trial]) -> Any:
        began = time.process_time()
        try:
            return self.sampler.ask(number, trials)
        finally:
            self.seconds += time.process_time() - began
            self.asks += 1


class Driven:
    """LCBench's tasks as problems: one half of the configurations is known, the other is run.

    Args:
        data: the folder of `lcbench_dev.npz`.
        tasks: its tasks.
    """

    def __init__(self, data: Path, tasks: Sequence[KnownTask]) -> None:
        self.problems = search.recorded(str(data))
        self.known = [self._source(i, task) for i, task in enumerate(tasks)]
        self.rows = np.flatnonzero(~np.array(tables.for_model(tasks[0])))
        with np.load(data / "lcbench_dev.npz", allow_pickle=False) as file:
            columns = [search.to_unit(name, file[f"cfg_{name}"]) for name in search.RANGES]
            self.accuracy = file["val_accuracy"].astype(float)
            self.seconds = np.maximum.accumulate(file["time"].astype(float), axis=2)
        self.unit = np.stack(columns, axis=1)[self.rows]
        self.space = self.problems[0].space
        self.canonical = CanonicalSpace(self.space)
        self.taken = [useful(task, self.canonical) for task in self.known]

    def _source(self, number: int, task: KnownTask) -> KnownTask:
        rows = np.flatnonzero(np.array(tables.for_model(task)))
        return task.subset(np.random.default_rng(number).permutation(rows)[:SOURCE_ROWS].tolist())

    def experienced(self, task: int, seed: int, first: int = 20) -> ExperiencedSampler:
        """The posterior over all other tasks."""
        others = [t for i, t in enumerate(self.taken) if i != task and t is not None]
        target = self.problems[task].target
        own = ConvergenceSampler(self.space, target, seed)
        return ExperiencedSampler(self.space, target, seed, self.canonical, others, own, first)

    def policy(self, weights: network.Weights, task: int, seed: int) -> TrainedPolicySampler:
        """The trained policy with the same tasks."""
        known = self.experienced(task, seed)
        target = self.problems[task].target
        return TrainedPolicySampler(self.space, target, seed, known, known, weights=weights)

    def regrets(
        self,
        task: int,
        sampler: Any,
        seed: int,
        workers: int,
        spends: Sequence[int],
        pruner: Any = "auto",
        trials: int = TRIALS,
    ) -> list[float]:
        """Regret of a study at each spend."""
        problem = self.problems[task]
        limit = problem.target.limit

        def simulate(config: Config, _: int) -> SimCurve:
            point = np.array([search.to_unit(name, config[name]) for name in search.RANGES])
            row = self.rows[int(((self.unit - point) ** 2).sum(axis=1).argmin())]
            pairs = zip(self.seconds[task][row], self.accuracy[task][row], strict=True)
            points = [
                SimPoint(i + 1, float(t), {search.METRIC: float(a)})
                for i, (t, a) in enumerate(pairs)
            ]
            return SimCurve(points)

        with tempfile.TemporaryDirectory(dir=search.MEMORY) as folder:
            result = at.run(
                at.Experiment(problem.name, search._nothing, self.space, problem.target),
                trials=trials,
                time_limit=SPEND * limit / workers,
                sampler=sampler,
                pruner=pruner,
                pool=SimPool(simulate, workers),
                out=Path(folder, "study"),
                seed=seed,
                racing=0.0,
                progress=False,
            )
        least = self._least(task)
        found = []
        for spend in spends:
            times = [
                t.seconds / limit
                for t in result.trials
                if t.state is State.REACHED
                and (t.ended_at or 0.0) <= spend * limit / workers + 1e-6
            ]
            found.append(min([*times, 1.0]) / least)
        return found

    def _least(self, task: int) -> float:
        """The least time of a configuration that is run, in limits."""
        target = self.problems[task].target
        met = self.accuracy[task][self.rows] >= target.value
        seconds = np.where(met, self.seconds[task][self.rows], math.inf).min()
        return min(float(seconds) / target.limit, 1.0)
