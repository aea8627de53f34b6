"""The studies of the shipped experience as tasks of `few_trials.py`.

A study's trials are a table: the nearest one stands for a proposed configuration. Its metric is
known at twelve marks of the limit, and when it reached the target. The known tasks are the studies
on other data or, to see what unlike tasks are worth, those of them that are of another family (the
farm, recipes, LCBench, TaskSet), too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import _few_sources as sources
import numpy as np
from _few_problems import Case
from search import METRIC, Problem

import autotune as at
from autotune.algorithms.experience.known_task import MARKS, Array, KnownTask
from autotune.algorithms.experience.names import EFFECTIVE_LR, OPTIMIZER
from autotune.backends.simulator import SimCurve, SimPoint
from autotune.space.encoding import unit_of
from autotune.space.parameters import Choice, Parameter, is_real
from autotune.trial import Config, Params

_DATA = ("digits", "signals", "fashion", "shakespeare")
_DECADES = 20.0  # the ratio of two numbers from which on they are searched by their logarithm
_OTHER_OPTION = 0.5  # squared distance of two points with different options of a choice
_JUST_BELOW = 1e-9  # the target: a trial reaches it when its time says so


shipped = lru_cache(maxsize=1)(sources.shipped)


def tasks() -> list[KnownTask]:
    """The shipped studies of which a trial reached the target."""
    return [task for task in shipped() if np.isfinite(task.times).any()]


def on_other_data(task: KnownTask) -> list[KnownTask]:
    """The shipped studies on other data."""
    return [other for other in shipped() if data(other.name) != data(task.name)]


def unlike(task: KnownTask) -> list[KnownTask]:
    """Those of them that are of another family, too."""
    own = sources.family(task.name)
    return [other for other in on_other_data(task) if sources.family(other.name) != own]


def data(name: str) -> str:
    """What a study trained on; of a recorded table each study has its own.

    >>> data("farm-digits-few"), data("lcbench-3945")
    ('digits', 'lcbench-3945')
    """
    return next((known for known in _DATA if known in name), name)


def case(number: int) -> Case:
    """A shipped study as a problem."""
    table = Table(tasks()[number])
    best = table.points[int(table.times.argmin())]
    return Case(as_problem(table), "quantile", table.params(best))


def as_problem(table: Table) -> Problem:
    """A table as a problem without a baseline."""
    return Problem(
        name=table.task.name,
        space=table.space,
        target=at.Target(METRIC, table.goal, limit=1.0),
        simulate=lambda: table.simulate,
        milestones=len(MARKS),
        best=float(table.times.min()),
        judge=lambda config: float(table.times[table.nearest(config)]),
        baseline={},
        recorded=True,
        length=lambda config: 1.0,
    )


@dataclass(frozen=True, eq=False)
class Table:
    """A study's trials, of several optimizers those of SGD."""

    task: KnownTask

    @cached_property
    def rows(self) -> list[int]:
        """The trials that are used."""
        optimizers = [point.get(OPTIMIZER) for point in self.task.points]
        mixed = len(set(optimizers)) > 1
        return [i for i, name in enumerate(optimizers) if not mixed or name == "sgd"]

    @cached_property
    def points(self) -> list[Mapping[str, Any]]:
        return [self.task.points[i] for i in self.rows]

    @cached_property
    def times(self) -> Array:
        """Of each point, as a share of the limit; inf where the target was not reached."""
        return self.task.times[self.rows]

    @cached_property
    def curves(self) -> Array:
        return self.task.curves[self.rows]

    @cached_property
    def goal(self) -> float:
        """The least metric at the end of a trial that reached the target."""
        return float(np.nanmax(self.curves, axis=1)[np.isfinite(self.times)].min())

    @cached_property
    def space(self) -> at.SearchSpace:
        """The ranges of the points' values; a name with a dot, part of a schedule, is left out."""
        names = dict.fromkeys(name for point in self.points for name in point)
        kept = [name for name in names if "." not in name and name != EFFECTIVE_LR]
        return at.SearchSpace({n: entry([p[n] for p in self.points if n in p]) for n in kept})

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        return self.space.parameters()

    def params(self, point: Mapping[str, Any]) -> Params:
        """A point of the space; where a value is missing, that of the first trial which has it."""
        known = {name: v for each in reversed(self.points) for name, v in each.items()}
        return {name: point.get(name, known[name]) for name in self.parameters}

    @cached_property
    def _units(self) -> Array:
        return np.array([self._unit(point) for point in self.points])

    def _unit(self, point: Mapping[str, Any]) -> list[float]:
        return [
            0.5 if isinstance(p, Choice) or name not in point else unit_of(p, point[name])
            for name, p in self.parameters.items()
        ]

    def nearest(self, config: Config) -> int:
        """The trial nearest to a configuration."""
        away = ((self._units - np.array(self._unit(config))) ** 2).sum(axis=1)
        for name, parameter in self.parameters.items():
            if isinstance(parameter, Choice):
                other = np.array([point.get(name) != config.get(name) for point in self.points])
                away = away + _OTHER_OPTION * other
        return int(away.argmin())

    def simulate(self, config: Config, seed: int) -> SimCurve:
        """The nearest trial's curve until its target."""
        row = self.nearest(config)
        end, below = self.times[row], self.goal - _JUST_BELOW * max(abs(self.goal), 1.0)
        seen = [(float(m), float(v)) for m, v in zip(MARKS, self.curves[row], strict=True)]
        pairs = [(m, min(v, below)) for m, v in seen if m < end and math.isfinite(v)]
        pairs += [(float(end), self.goal)] if math.isfinite(end) else []
        pairs = pairs or [(float(MARKS[0]), float(np.nanmin(self.curves)))]
        return SimCurve([SimPoint(i + 1, t, {METRIC: v}) for i, (t, v) in enumerate(pairs)])


def entry(values: Sequence[Any]) -> Any:
    """What is searched, from the values that the trials have."""
    if len(set(values)) == 1:
        return at.Fixed(values[0])
    if not all(map(is_real, values)):
        return at.Choice(tuple(dict.fromkeys(values)))
    low, high = min(values), max(values)
    log = low > 0 and high / low > _DECADES
    if all(isinstance(value, int) for value in values):
        powers = low > 0 and all(math.log2(value).is_integer() for value in values)
        return at.Int(low, high, power_of_two=True) if powers else at.Int(low, high, log=log)
    return at.Float(float(low), float(high), log=log)
