"""The problems of `few_trials.py`: recorded curves and the farm, with two kinds of target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from zipfile import BadZipFile

import farm
import numpy as np
import search
from search import METRIC, RANGES, Problem, to_unit

import autotune as at
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import MARKS, Array, KnownTask
from autotune.errors import UserError
from autotune.trial import Config, Params

TARGETS = ("quantile", "baseline")
FRESH = search.FIRST_FRESH
SOURCE_SEED = 7  # of the random configurations that known tasks of the farm are made of


@dataclass(frozen=True)
class Case:
    """A problem with one kind of target.

    Args:
        target: one of `TARGETS`.
        known_best: the point of the space that reaches it soonest, as far as is known.
    """

    problem: Problem
    target: str
    known_best: Params


@dataclass(frozen=True, eq=False)
class Table:
    """Recorded curves of the same configurations on several tasks.

    Args:
        names: of the tasks.
        points: of the configurations.
        accuracy, seconds: (tasks, configurations, milestones).
    """

    path: str
    names: Sequence[str]
    points: Sequence[Params]
    accuracy: Array
    seconds: Array


@lru_cache(maxsize=4)
def table(path: str) -> Table:
    """Read a table.

    Raises:
        UserError: there is no such file, or it has another form.
    """
    place = Path(path)
    place = place / "lcbench_dev.npz" if place.is_dir() else place
    wanted = ["val_accuracy", "time", *(f"cfg_{name}" for name in RANGES)]
    try:
        with np.load(place, allow_pickle=False) as file:
            absent = [key for key in wanted if key not in file.files]
            if absent:
                raise UserError(f"{path}: a table of curves needs {', '.join(absent)}")
            accuracy = file["val_accuracy"].astype(float)
            seconds = np.maximum.accumulate(file["time"].astype(float), axis=2)
            columns = {name: file[f"cfg_{name}"] for name in RANGES}
            numbered = [f"{place.stem}-{i}" for i in range(len(accuracy))]
            names = file["tasks"] if "tasks" in file.files else numbered
    except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
        raise UserError(f"{path}: not a table of curves: {error}") from None
    rows = zip(*columns.values(), strict=True)
    whole = [kind for *_, kind in RANGES.values()]
    points = [
        {n: int(v) if w else float(v) for n, v, w in zip(RANGES, row, whole, strict=True)}
        for row in rows
    ]
    return Table(str(place), [str(name) for name in names], points, accuracy, seconds)


def recorded_case(data: str, number: int, target: str) -> Case | None:
    """A task of a table; None where no configuration reaches the target before the limit."""
    own, problem = table(data), search.recorded(table(data).path)[number]
    unit = np.array([[to_unit(n, p[n]) for n in RANGES] for p in own.points])

    def nearest(config: Config) -> int:
        point = np.array([to_unit(name, config[name]) for name in RANGES])
        return int(((unit - point) ** 2).sum(axis=1).argmin())

    accuracy, seconds, limit = own.accuracy[number], own.seconds[number], problem.target.limit
    value = problem.target.value
    if target == "baseline":
        row = nearest(problem.baseline)
        before = int((seconds[row] < limit).sum())
        value = float(accuracy[row][max(before, 1) - 1])
    times = first_times(accuracy, seconds, value, limit)
    if not np.isfinite(times).any():
        return None
    problem = replace(
        problem,
        name=own.names[number],
        target=at.Target(METRIC, value, limit=limit),
        best=float(times.min()),
        judge=lambda config: float(times[nearest(config)]),
    )
    return Case(problem, target, dict(own.points[int(times.argmin())]))


def first_times(accuracy: Array, seconds: Array, value: float, limit: float) -> Array:
    """Seconds at which each curve meets a value before the limit; inf where it does not."""
    met = accuracy >= value
    at_first = seconds[np.arange(len(seconds)), met.argmax(axis=1)]
    return np.where(met.any(axis=1) & (at_first < limit), at_first, np.inf)


def trained_case(number: int, target: str) -> Case | None:
    """A task of the farm; a configuration is worth its mean time on fresh seeds."""
    task, problem = farm.tasks()[number], search.trained()[number]
    if target == "baseline":
        curves = [task.accuracies([problem.baseline], FRESH + seed) for seed in range(3)]
        value = statistics.median(float(curve[0, -2]) for curve in curves)  # before the limit
        task = replace(task, goal=value)
    worth = lru_cache(maxsize=None)(lambda one: search.judged(task, one.config, by_mean=True))
    judge: Callable[[Config], float] = lambda config: worth(_Hashed(config))  # noqa: E731
    known = task.space().config(task.best_point())
    best = judge(known)
    if best >= task.limit:
        return None
    problem = replace(problem, target=task.target(), best=best, judge=judge)
    return Case(problem, target, task.best_point())


@dataclass(frozen=True)
class _Hashed:
    """A configuration as the key of a cache."""

    config: Config

    def __hash__(self) -> int:
        return hash(repr(sorted(self.config.items(), key=lambda item: item[0])))


# --- the same as known tasks ----------------------------------------------------------------------


def known_task(
    name: str,
    canonical: CanonicalSpace,
    points: Sequence[Params],
    curves: tuple[Array, Array],
    goal: tuple[float, float],
) -> KnownTask:
    """What a study that ran these points without stopping any would have left.

    Args:
        curves: accuracy and seconds, both (points, milestones).
        goal: the target's value and limit.
    """
    (accuracy, seconds), (value, limit) = curves, goal
    best = np.maximum.accumulate(accuracy, axis=1)
    kept = np.full((len(points), len(MARKS)), np.nan)
    for own, times, values in zip(kept, seconds / limit, best, strict=True):
        last = np.searchsorted(times, MARKS, side="right") - 1
        own[last >= 0] = values[last[last >= 0]]
    times = first_times(accuracy, seconds, value, limit) / limit
    canonical_points = [canonical.point(point) for point in points]
    return KnownTask(name, canonical_points, times, np.ones(len(points)), kept)


def recorded_task(data: str, number: int, trials: int | None = None) -> KnownTask:
    """A task of a table as a known one: `trials` of its configurations, or all."""
    own, problem = table(data), search.recorded(table(data).path)[number]
    rows = np.arange(len(own.points))
    if trials is not None and trials < len(rows):
        rows = np.random.default_rng((number, SOURCE_SEED)).choice(rows, trials, replace=False)
    return known_task(
        own.names[number],
        CanonicalSpace(problem.space),
        [own.points[i] for i in rows],
        (own.accuracy[number][rows], own.seconds[number][rows]),
        (problem.target.value, problem.target.limit),
    )


def trained_task(task: farm.Task, trials: int) -> KnownTask:
    """A task of the farm as a known one: random configurations, trained now."""
    space = task.space()
    points = space.sample(trials, seed=SOURCE_SEED)
    accuracy = task.accuracies([space.config(point) for point in points], SOURCE_SEED)
    each = [farm.step_seconds(point["batch_size"]) for point in points]
    seconds = np.array([[s * e for s in farm._stops(task.limit, e)] for e in each])
    goal = task.target().value, task.limit
    return known_task(task.name, CanonicalSpace(space), points, (accuracy, seconds), goal)
