"""The probability that a point is feasible, learned from feasible and infeasible trials.

A trial is infeasible if it ran out of memory with the smallest microbatch, if its configuration
violated a constraint, or if its schedules did not fit together; a sampler may count those that
diverged, too. A Gaussian process over the points of all trials, with label +1 for feasible and -1
for infeasible ones, gives the probability; a sampler proposes points for which it is high (Gardner
et al. 2014, Gelbart et al. 2014: arXiv 1403.5607).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.algorithms.samplers.gaussian_process import Array, Hyper, Process, fit, prior_medians
from autotune.space.encoding import Encoder
from autotune.space.search_space import SearchSpace
from autotune.trial import DIVERGED, Params, State, Trial

LIKELY = 0.75  # the least probability of being feasible with which a point is proposed
_NEWEST = 60  # trials of either kind in the model
_FIT_LEAST = 8  # trials of either kind from which on its hyperparameters are fitted
_NOISE = 0.05  # the variance of a label


class Feasible:
    """The probability that a point of a space is feasible.

    Args:
        diverged: whether trials that diverged count as infeasible.
    """

    def __init__(self, space: SearchSpace, diverged: bool = False) -> None:
        self._diverged = diverged
        self._encoder = Encoder(space)
        self._fitted_to: Sequence[Trial] | None = None
        self._process: Process | None = None

    def chances(self, trials: Sequence[Trial], points: Sequence[Params]) -> Array:
        """The probability for each point, given ended trials; 1 if none was infeasible."""
        if self._fitted_to is None or self._fitted_to != trials:
            self._fitted_to, self._process = list(trials), self._fit(trials)
        if self._process is None:
            return np.ones(len(points))
        expected, deviation = self._process.at(self._encoder.rows(points))
        normal = expected / np.sqrt(deviation**2 + _NOISE)
        return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in normal])

    def _fit(self, trials: Sequence[Trial]) -> Process | None:
        bad = [t for t in trials if self._is_bad(t)][-_NEWEST:]
        ran = [t for t in trials if t.succeeded or t.state is State.CENSORED]
        good = [t for t in ran if not self._is_bad(t)][-_NEWEST:]
        if not bad:
            return None
        rows = self._encoder.rows([t.params or {} for t in (*good, *bad)])
        labels = np.r_[np.ones(len(good)), -np.ones(len(bad))]
        weights = np.ones(len(labels))
        hyper = Hyper(prior_medians(rows.shape[1]).scales, 0.0, math.log(_NOISE))
        if min(len(good), len(bad)) >= _FIT_LEAST:
            hyper = fit(rows, labels, weights)
        return Process(rows, labels, weights, hyper)

    def _is_bad(self, trial: Trial) -> bool:
        failed = self._diverged and trial.reason == DIVERGED
        return failed or trial.state is State.INFEASIBLE


def likely(chances: Array) -> list[int]:
    """The indices of the likely points, or of the likeliest one if there are none.

    >>> likely(np.array([0.2, 0.9, 0.8])), likely(np.array([0.2, 0.3]))
    ([1, 2], [1])
    """
    indices = [i for i, chance in enumerate(chances) if chance >= LIKELY]
    return indices or [int(chances.argmax())]
