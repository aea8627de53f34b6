"""What a study has seen itself near a point, as a correction of what known tasks predict.

Each ended trial has a residual: the log time that it took less what the posterior over known tasks
expects of it. A Gaussian process about zero over the residuals corrects the prediction of other
points, the more the nearer they are to tried ones. Its length scales are fitted, so that it learns
from few trials which parameter the error depends on. Ideas: Wang et al. 2024 (HyperBO, JMLR 25),
Feurer et al. 2018 (RGPE, arXiv 1802.02219).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.algorithms.experience.model import Predictions
from autotune.algorithms.experience.posterior import Posterior
from autotune.algorithms.experience.residuals import residuals
from autotune.algorithms.ranking.equal_time import GapCurves
from autotune.algorithms.samplers.gaussian_process import Array, Process, fit, prior_medians
from autotune.space.encoding import Encoder
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, Target, Trial

FIT_LEAST = 3
"""Trials from which on the process's hyperparameters are fitted."""


class OwnResults:
    """Corrects predictions of points of a space by a study's own trials."""

    def __init__(self, space: SearchSpace, target: Target) -> None:
        self._target = target
        self._encoder = Encoder(space)

    def correction(
        self,
        ended: Sequence[Trial],
        predicted: Predictions,
        now: Posterior,
        curves: GapCurves,
        points: Sequence[Params],
    ) -> Array:
        """What to add to the predicted log time of each point, or to its place: (points,).

        Args:
            ended: the ended trials, with what is `predicted` of their points.
            now: the posterior after them.
        """
        if not ended:
            return np.zeros(len(points))
        y = residuals(ended, predicted, now, self._target, curves)
        rows, ones = self._encoder.rows([t.params or {} for t in ended]), np.ones(len(y))
        hyper = prior_medians(rows.shape[1])
        if len(y) >= FIT_LEAST:
            hyper = fit(rows, y, ones, mean=0.0)
        return Process(rows, y, ones, hyper, mean=0.0).at(self._encoder.rows(points))[0]
