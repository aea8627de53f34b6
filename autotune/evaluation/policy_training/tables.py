"""Tables of results from which studies are simulated: tasks, and what other tasks say of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import Array, KnownTask
from autotune.algorithms.experience.model import KnownTasks, Predictions, useful
from autotune.algorithms.experience.names import SAME
from autotune.algorithms.samplers.trained_policy.inputs import Bools, positions
from autotune.space.parameters import Choice, Float, is_real
from autotune.space.search_space import SearchSpace
from autotune.trial.values import point_key

_LOG = 20.0  # a range whose ends differ by this factor is logarithmic
_SOURCE_ROWS = 300  # trials of a known task
LEAST_ROWS = 20  # trials of a task, for a study of it to be simulated


@dataclass(frozen=True, eq=False)
class Table:
    """A task whose studies are simulated, and what models of other tasks say of its points.

    Args:
        task: the points that a study may run.
        positions: of the points in the task's space, (points, parameters).
        choices: which of the parameters are choices.
        predicted: of the other tasks' models, for the points.
        owner: the number of the task that each model is of.
    """

    task: KnownTask
    positions: Array
    choices: Bools
    predicted: Predictions
    owner: Array


def task_space(tasks: Sequence[KnownTask]) -> SearchSpace:
    """The space that tasks' trials were drawn from, as far as their points show it.

    >>> points = [{"lr": 0.01, "opt": "sgd"}, {"lr": 1.0, "opt": "adam"}]
    >>> one = KnownTask("a", points, *(np.ones(2),) * 2, np.ones((2, 12)))
    >>> task_space([one]).parameters()["lr"]
    Float(low=0.01, high=1.0, log=True)
    """
    values: dict[str, list[Any]] = {}
    for point in (point for task in tasks for point in task.points):
        for name, value in point.items():
            values.setdefault(name, []).append(value)
    entries: dict[str, Any] = {}
    for name, found in values.items():
        if len(distinct := list({repr(v): v for v in found}.values())) < 2 or "." in name:
            continue
        if all(is_real(v) for v in distinct):
            low, high = float(min(distinct)), float(max(distinct))
            entries[name] = Float(low, high, log=low > 0 and high / low >= _LOG)
        elif len(distinct) <= 20:
            entries[name] = Choice(tuple(distinct))
    return SearchSpace(entries)


def families(tasks: Sequence[KnownTask]) -> list[list[KnownTask]]:
    """Tasks in groups with the same parameters."""
    groups: dict[tuple[str, ...], list[KnownTask]] = {}
    for task in tasks:
        names = {name for point in task.points for name in point}
        groups.setdefault(tuple(sorted(names)), []).append(task)
    return list(groups.values())


def tables(
    tasks: Sequence[KnownTask],
    rng: np.random.Generator,
    views: int = 1,
    known: Sequence[KnownTask] | None = None,
) -> list[Table]:
    """A table of each task that is large enough, in each of some views.

    The points of a table are none that the other tasks' models have seen: where tasks of a family
    share points, one half of all points is for the models and the other for studies. In the first
    view all parameters of the other tasks are known by name, in each further one some go by another
    name.

    Args:
        tasks: those that studies are simulated of.
        rng: of the rows and of the names.
        views: how many.
        known: the tasks that are known; by default all of `tasks` but the one itself.
    """
    made = []
    for group in families(tasks):
        split = _share_points(group)
        for view in range(views):
            space = task_space(group)
            names = list(space.entries)
            hidden = set() if view == 0 else _some(names, rng)
            seen = SearchSpace({n: e for n, e in space.entries.items() if n not in hidden})
            canonical = CanonicalSpace(seen, {name: name for name in (*names, *SAME.values())})
            everyone = [_half(t, split, True) for t in (tasks if known is None else known)]
            models, owner = _models(canonical, everyone, rng)
            for task in group:
                own = _half(task, split, False)
                if len(own.points) < LEAST_ROWS or not names:
                    continue
                of = [i for i, o in enumerate(owner) if everyone[o].name != task.name]
                made.append(_table(own, space, models, owner, of))
    return made


def _models(
    canonical: CanonicalSpace, tasks: Sequence[KnownTask], rng: np.random.Generator
) -> tuple[KnownTasks, Array]:
    """The models of the tasks that say something of a space, and whose each of them is."""
    chosen = []
    for task in tasks:
        rows = rng.permutation(len(task.points))[:_SOURCE_ROWS].tolist()
        chosen.append(useful(task.subset(rows), canonical))
    there = [i for i, task in enumerate(chosen) if task is not None]
    models = KnownTasks(canonical, [task for task in chosen if task is not None])
    return models, np.array([there[o] for o in models.owner], dtype=int)


def _table(
    task: KnownTask, space: SearchSpace, models: KnownTasks, owner: Array, of: Sequence[int]
) -> Table:
    parameters = space.parameters()
    unit, choices = positions(parameters, task.points)
    points: list[Mapping[str, Any]] = [
        {n: v for n, v in point.items() if n in models.space.searched} for point in task.points
    ]
    if len(models.owner):
        found = models.at([dict(point) for point in points])
        predicted = Predictions(found.logs[of], found.deviations[of], found.scores[of])
    else:
        none = np.zeros((0, len(points)))
        predicted = Predictions(none, none, np.zeros((0, len(points), task.curves.shape[1])))
    return Table(task, unit, choices, predicted, owner[list(of)])


def _some(names: Sequence[str], rng: np.random.Generator) -> set[str]:
    """Up to half of the names."""
    count = int(rng.integers(1, max(len(names) // 2, 1) + 1))
    return set(rng.permutation(np.array(names))[:count].tolist())


def _half(task: KnownTask, split: bool, for_models: bool) -> KnownTask:
    """The trials of a task that are for models, or for studies, where they are split."""
    sides = for_model(task) if split else [for_models] * len(task.points)
    return task.subset([i for i, side in enumerate(sides) if side == for_models])


def for_model(task: KnownTask) -> list[bool]:
    """Which half of a task's trials is for models; it only depends on their points."""
    return [hashlib.sha256(point_key(point).encode()).digest()[0] % 2 == 0 for point in task.points]


def _share_points(tasks: Sequence[KnownTask]) -> bool:
    """Whether some point was run in several tasks."""
    each = [{point_key(point) for point in task.points} for task in tasks]
    return len(set().union(*each)) < sum(map(len, each))
