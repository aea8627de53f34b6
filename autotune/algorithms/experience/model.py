"""A model of a new study's configurations, made of earlier studies: one forest for each of them.

Each forest predicts the time to target and the place at equal times of a configuration from its
canonical parameters (extremely randomised trees: Geurts et al. 2006). Forests order time to target
better than Gaussian processes do here, as most configurations never reach the target
(`benchmarks/results`, few trials).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.features import columns, joined, names_of, scaled
from autotune.algorithms.experience.known_task import (
    MARKS,
    Array,
    KnownTask,
    best_first,
    curve_scores,
    log_times,
)
from autotune.algorithms.experience.names import OPTIMIZER, canonical_optimizer
from autotune.algorithms.experience.thinned import thinned
from autotune.space.parameters import Choice, Parameter, is_real
from autotune.trial import Params

LEAST_TRIALS = 5  # of a study, for a forest
LEAST_SHARED = 2  # searched parameters that it must share with the space, if it has so many
_MOST_TRIALS = 500
_JUDGED_FROM = 60  # trials: fewer show too little of whether settings explain results
_NEIGHBOURS = 5  # trials that one is compared with
_LEAST_CORRELATION = 0.3  # of ranks; less the deviation by chance, results are explained from here
_SAME = 4.0  # weight of a study with the same trainer and space, over that of another one
_FEWER = 0.5  # factor of a study's weight for each parameter that it shares less than others
_TREES, _LEAST_TREES, _ALL_TREES = 60, 20, 1600  # of a task, at most and at least; of all tasks
_SHARE = 0.7  # of the features is tried for a cut
_STRANGE = 1.0  # deviation of a log time about the limit, with an optimizer that a task never had
_MANY = 60  # trials from which on leaves have two of them: few trials must not be averaged


@dataclass(frozen=True, eq=False)
class Predictions:
    """What each model expects of points.

    Args:
        logs: log time to target, as a share of the limit: (models, points).
        deviations: of the trees' predictions of it: (models, points).
        scores: normal score of the place among its study's trials at each mark; low for the best:
            (models, points, marks).
    """

    logs: Array
    deviations: Array
    scores: Array

    def joined(self, other: Predictions) -> Predictions:
        """The predictions of these points and then of others."""
        return Predictions(
            np.concatenate([self.logs, other.logs], axis=1),
            np.concatenate([self.deviations, other.deviations], axis=1),
            np.concatenate([self.scores, other.scores], axis=1),
        )

    def of(self, places: Sequence[int]) -> Predictions:
        """The predictions of some of the points."""
        index = list(places)
        return Predictions(self.logs[:, index], self.deviations[:, index], self.scores[:, index])


def useful(task: KnownTask, space: CanonicalSpace) -> KnownTask | None:
    """The trials of a task from which something can be learned about a space; None if nothing can.

    They have an optimizer that the space can have, or whose settings one of its own takes, and
    their parameters vary in the task.
    """
    adopted = [space.adopted(point) for point in task.points]
    usable = {i: point for i, point in enumerate(adopted) if point is not None}
    rows = thinned(list(usable), partial(best_first, task), _MOST_TRIALS)
    needed = min(LEAST_SHARED, len(space.searched))
    if len(rows) < LEAST_TRIALS or len(shared(task, space)) < needed:
        return None
    found = replace(task.subset(rows), points=[usable[i] for i in rows])
    return found if log_times(found).shape[1] else None


def explained(task: KnownTask, space: CanonicalSpace) -> bool:
    """Whether trials with settings alike took times alike; of fewer than 60 trials it is assumed.

    So trials whose results were mixed up, or differ by chance alone, teach nothing. Each time to
    the task's first level (`log_times`) is compared with the mean of those of the trials nearest to
    it, by the ranks of the parameters that the task and the space both have.

    Args:
        task: as `useful` returned it.
    """
    from scipy.spatial.distance import cdist
    from scipy.stats import rankdata, spearmanr

    times = log_times(task)[:, 0]
    count = len(times)
    if count < _JUDGED_FROM:
        return True
    if not np.ptp(times):
        return False
    features = [columns(name, task.points, space) for name in names_of(task, space)]
    ranks = rankdata(joined(features, count), axis=0)
    apart = cdist(ranks, ranks, "sqeuclidean")
    np.fill_diagonal(apart, np.inf)
    farthest = np.partition(apart, _NEIGHBOURS - 1, axis=1)[:, _NEIGHBOURS - 1]
    near = apart <= farthest[:, None]  # of equally near ones all
    correlation = spearmanr(near @ times / near.sum(axis=1), times).statistic
    return bool(correlation >= _LEAST_CORRELATION - 1 / math.sqrt(count))


def shared(task: KnownTask, space: CanonicalSpace) -> list[str]:
    """The canonical names of the parameters that both search; a rate by any of its names."""
    return [
        name
        for name, parameter in space.searched.items()
        if any(len(_values(task, other, parameter)) > 1 for other in space.same(name))
    ]


def similarity(task: KnownTask, space: CanonicalSpace) -> float:
    """How many parameters both search, each counted by how much of its range both have."""
    parts = []
    for name in shared(task, space):
        parameter = space.searched[name]
        values = [_values(task, other, parameter) for other in space.same(name)]
        parts.append(_overlap(parameter, max(values, key=len)))
    return math.fsum(parts)


def _values(task: KnownTask, name: str, parameter: Parameter) -> set[Any]:
    """The values that a task has of a name; None where it is an option, and not just missing."""
    optional = isinstance(parameter, Choice) and None in parameter.options
    values = (point[name] for point in task.points if name in point)
    return {value for value in values if value is not None or optional}


def _overlap(parameter: Parameter, values: set[Any]) -> float:
    """The share of a parameter's options, or of its range and another one together, in both."""
    numbers = [value for value in values if is_real(value)]
    if isinstance(parameter, Choice):
        low, high = min(numbers, default=math.inf), max(numbers, default=-math.inf)
        found = [o in values or (is_real(o) and low <= o <= high) for o in parameter.options]
        return float(sum(found) / len(found))
    if not numbers:
        return 0.0
    units = [scaled(parameter, value) for value in numbers]
    low, high = min(units), max(units)
    return max(min(high, 1.0) - max(low, 0.0), 0.0) / (max(high, 1.0) - min(low, 0.0))


@dataclass(frozen=True)
class _Fitted:
    """The model of a task.

    Args:
        forest: of its trials, with first the levels of the metric and then the marks as outputs.
        names: of its features.
        levels: how many there are.
        optimizers: those of its trials; None where they do not say.
    """

    forest: Any
    names: Sequence[str]
    levels: int
    optimizers: frozenset[Any] | None

    def strange(self, points: Sequence[Mapping[str, Any]]) -> NDArray[np.bool_]:
        """Which points have an optimizer of which the task has no trial."""
        if self.optimizers is None:
            return np.zeros(len(points), dtype=bool)
        return np.array([point.get(OPTIMIZER) not in self.optimizers for point in points])


class KnownTasks:
    """The models of the tasks from which something can be learned about a space.

    A task has one model for each level of its metric (see `log_times`).

    Args:
        space: the new study's.
        tasks: as `useful` returned them.
    """

    def __init__(self, space: CanonicalSpace, tasks: Sequence[KnownTask]) -> None:
        self.space, self.tasks = space, tuple(tasks)
        self._forests = [self._fitted(task) for task in self.tasks]
        levels = [fitted.levels for fitted in self._forests]
        self.owner = [task for task, count in enumerate(levels) for _ in range(count)]
        """The task of each model."""
        common = [len(shared(task, space)) for task in self.tasks]
        each = [
            _SAME**task.same * _FEWER ** (max(common) - count)
            for task, count in zip(self.tasks, common, strict=True)
        ]
        self.weights = np.array([each[task] for task in self.owner])
        """Of each model before any trial, up to a factor."""

    def at(self, points: Sequence[Params]) -> Predictions:
        """What each model expects of points of the new space."""
        if not points:
            empty = np.zeros((len(self.owner), 0))
            return Predictions(empty, empty, np.zeros((*empty.shape, len(MARKS))))
        canonical = [self.space.point(point) for point in points]
        known = dict.fromkeys(name for fitted in self._forests for name in fitted.names)
        features = {name: columns(name, canonical, self.space) for name in known}
        logs, deviations, scores = [], [], []
        for fitted in self._forests:
            rows = joined([features[name] for name in fitted.names], len(points))
            each = np.stack([tree.tree_.predict(rows) for tree in fitted.forest.estimators_])
            each = each.reshape(len(each), len(points), -1)
            # Of all outputs: numpy would sum those of one point and level in another order.
            mean, spread = each.mean(axis=0), each.std(axis=0)[:, : fitted.levels]
            strange = fitted.strange(canonical)
            mean[strange], spread[strange] = 0.0, _STRANGE
            logs.append(mean[:, : fitted.levels].T)
            deviations.append(spread.T)
            scores += [mean[:, fitted.levels :]] * fitted.levels
        return Predictions(np.concatenate(logs), np.concatenate(deviations), np.stack(scores))

    def _fitted(self, task: KnownTask) -> _Fitted:
        from sklearn.ensemble import ExtraTreesRegressor

        names = names_of(task, self.space)
        times = log_times(task)
        wanted = np.concatenate([times, curve_scores(task)], axis=1)
        forest = ExtraTreesRegressor(
            min(_TREES, max(_ALL_TREES // len(self.tasks), _LEAST_TREES)),
            min_samples_leaf=2 if len(task.points) >= _MANY else 1,
            max_features=_SHARE,
            random_state=0,
        )
        features = [columns(name, task.points, self.space) for name in names]
        forest.fit(joined(features, len(task.points)), wanted)
        theirs = frozenset(canonical_optimizer(point.get(OPTIMIZER)) for point in task.points)
        said = self.space.optimizers() is not None and None not in theirs
        return _Fitted(forest, names, times.shape[1], theirs if said else None)
