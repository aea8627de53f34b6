"""Shipped studies of one problem with several optimizers, as one task of `few_trials.py`.

The optimizer is searched, and each has parameters and ranges of its own, as in the recipes
`optimizers`. The nearest trial with the same optimizer stands for a proposed configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from _few_problems import Case
from _few_shipped import Table, as_problem, entry, shipped

import autotune as at
from autotune.algorithms.experience.known_task import KnownTask, final_metrics
from autotune.algorithms.experience.names import EFFECTIVE_LR, OPTIMIZER
from autotune.algorithms.experience.problems import joined
from autotune.trial import Config, Params

_SHARED = ("batch_size", "epochs")  # parameters of all optimizers
_BASELINE = ("sgd", "adamw")  # the optimizer of a baseline: the first of these that a problem has


@lru_cache(maxsize=1)
def tasks() -> list[KnownTask]:
    """The problems that were trained with several optimizers."""
    return [task for task in joined(shipped()) if task.name == task.problem]


def case(number: int) -> Case:
    """A problem; its baseline is the slowest trial of SGD, or AdamW, that reached the target."""
    table = OptimizersTable(tasks()[number])
    best = table.points[int(table.times.argmin())]
    problem = replace(as_problem(table), baseline=table.space.config(table.params(table.baseline)))
    return Case(problem, "quantile", table.params(best))


@dataclass(frozen=True, eq=False)
class OptimizersTable(Table):
    """The trials of all optimizers."""

    @cached_property
    def rows(self) -> list[int]:
        return list(range(len(self.task.points)))

    @cached_property
    def of_optimizer(self) -> dict[str, list[int]]:
        """The trials of each optimizer."""
        found: dict[str, list[int]] = {}
        for row, point in enumerate(self.points):
            found.setdefault(point[OPTIMIZER], []).append(row)
        return found

    @cached_property
    def baseline(self) -> Mapping[str, Any]:
        """A point that reaches the target late, or comes near, as a person's may."""
        name = next(name for name in _BASELINE if name in self.of_optimizer)
        rows = self.of_optimizer[name]
        final = final_metrics(self.curves)
        fast = sorted(rows, key=lambda row: (self.times[row], -final[row]))
        reached = int(np.isfinite(self.times[rows]).sum())
        return self.points[fast[max(reached - 1, 0)]]

    @cached_property
    def space(self) -> at.SearchSpace:
        """The optimizer, what all have, and under its condition what each has."""
        entries: dict[str, Any] = {OPTIMIZER: at.Choice(tuple(self.of_optimizer))}
        for name in _SHARED:
            entries[name] = entry([point[name] for point in self.points])
        for optimizer, rows in self.of_optimizer.items():
            points = [self.points[row] for row in rows]
            for name in self._own(points):
                own = entry([point[name] for point in points if name in point])
                entries[f"{name}:{optimizer}"] = replace(own, when={OPTIMIZER: optimizer})
        return at.SearchSpace(entries)

    def _own(self, points: Sequence[Mapping[str, Any]]) -> list[str]:
        names = dict.fromkeys(name for point in points for name in point)
        left_out = (OPTIMIZER, EFFECTIVE_LR, *_SHARED)
        return [name for name in names if "." not in name and name not in left_out]

    def params(self, point: Mapping[str, Any]) -> Params:
        """A point of the space; where a value is missing, that of the optimizer's first trial."""
        optimizer = point[OPTIMIZER]
        rows = reversed(self.of_optimizer[optimizer])
        known = {name: v for row in rows for name, v in self.points[row].items()}
        found = {OPTIMIZER: optimizer}
        for flat in self.parameters:
            name, _, of = flat.partition(":")
            if of in ("", optimizer) and flat != OPTIMIZER:
                found[flat] = point.get(name, known[name])
        return found

    @cached_property
    def _tables(self) -> dict[str, Table]:
        """A table of each optimizer."""
        return {name: Table(self.task.subset(rows)) for name, rows in self.of_optimizer.items()}

    def nearest(self, config: Config) -> int:
        name = config[OPTIMIZER]
        return self.of_optimizer[name][self._tables[name].nearest(config)]
