"""Where a space is feasible: the chance that a point is, learned from what was and what was not.

A trial is infeasible where it ran out of memory whatever was done, where its configuration broke a
constraint, or where its schedules did not fit together. A Gaussian process over the points of all
trials, +1 where they were feasible and -1 where not, gives the chance that a further one is; what
a sampler proposes is to be likely (Gardner et al. 2014, Gelbart et al. 2014: arXiv 1403.5607).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.algorithms.samplers.gaussian_process import Array, Hyper, Process, fitted, usual
from autotune.space.encoding import effective_rate, encoded
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, State, Trial

SURE = 0.75  # the least chance of being feasible with which a point is proposed
_NEWEST = 60  # trials of either kind that the model sees
_FITTED = 8  # of either kind before its hyperparameters are fitted
_NOISE = 0.05  # the variance of a label


class Feasible:
    """The chance that a point of a space is feasible."""

    def __init__(self, space: SearchSpace) -> None:
        self._parameters = space.parameters()
        self._effective = effective_rate(space)
        self._told: Sequence[Trial] | None = None
        self._process: Process | None = None

    def chances(self, told: Sequence[Trial], points: Sequence[Params]) -> Array:
        """For each point, in the light of trials that have ended; 1 where none was infeasible."""
        if self._told is None or self._told != told:
            self._told, self._process = list(told), self._learned(told)
        if self._process is None:
            return np.ones(len(points))
        expected, unsure = self._process.at(self._rows(points))
        normal = expected / np.sqrt(unsure**2 + _NOISE)
        return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in normal])

    def _learned(self, told: Sequence[Trial]) -> Process | None:
        bad = [t for t in told if t.state is State.INFEASIBLE][-_NEWEST:]
        good = [t for t in told if t.state in (State.REACHED, State.CENSORED)][-_NEWEST:]
        if not bad:
            return None
        rows = self._rows([t.params or {} for t in (*good, *bad)])
        labels = np.r_[np.ones(len(good)), -np.ones(len(bad))]
        weights = np.ones(len(labels))
        hyper = Hyper(usual(rows.shape[1]).scales, 0.0, math.log(_NOISE))
        if min(len(good), len(bad)) >= _FITTED:
            hyper = fitted(rows, labels, weights)
        return Process(rows, labels, weights, hyper)

    def _rows(self, points: Sequence[Params]) -> Array:
        rows = [encoded(self._parameters, point, self._effective) for point in points]
        return np.array(rows, dtype=float)


def likely(chances: Array) -> list[int]:
    """The places of the likely ones; of the most likely one where there are none.

    >>> likely(np.array([0.2, 0.9, 0.8])), likely(np.array([0.2, 0.3]))
    ([1, 2], [1])
    """
    found = [i for i, chance in enumerate(chances) if chance >= SURE]
    return found or [int(chances.argmax())]
