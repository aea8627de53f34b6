"""What known tasks say of the candidates of a decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.algorithms.experience.known_task import Array
from autotune.algorithms.experience.model import Predictions
from autotune.algorithms.experience.posterior import Posterior, shifts


@dataclass(frozen=True, eq=False)
class Expected:
    """What known tasks say of candidates and trials.

    Args:
        gains: expected improvement of each candidate in log time, (candidates,).
        means: log times of the candidates under the posterior, (candidates,).
        deviations: their standard deviations, (candidates,).
        of_trials: log times of the trials under the posterior, (trials,).
        none: the probability that the study is like none of the known ones.
        spread: how many hypotheses share the rest, as the exponential of their entropy.
    """

    gains: Array
    means: Array
    deviations: Array
    of_trials: Array
    none: float
    spread: float

    def of(self, rows: Sequence[int]) -> Expected:
        """The same of some of the candidates."""
        index = list(rows)
        return replace(
            self,
            gains=self.gains[index],
            means=self.means[index],
            deviations=self.deviations[index],
        )


def nothing_known(candidates: int, trials: int) -> Expected:
    """Where no task is known."""
    zeros = np.zeros(candidates)
    return Expected(zeros, zeros, zeros, np.zeros(trials), 1.0, 1.0)


def expectation(
    predicted: Predictions,
    now: Posterior,
    gains: Array,
    rows: Sequence[int],
    tried: Sequence[int],
) -> Expected:
    """What the posterior expects.

    Args:
        predicted: of the candidates and the trials, where `rows` and `tried` say.
        now: the posterior.
        gains: expected improvement of each candidate.
        rows: the candidates.
        tried: the trials, in the order of `Seen`.
    """
    shares = now.weights / max(float(now.weights.sum()), 1e-12)
    each, scale = shares.sum(axis=1), float(shares.sum(axis=0) @ shifts())
    logs = predicted.logs[:, list(rows)]
    means = each @ logs
    squares = each @ (logs**2 + predicted.deviations[:, list(rows)] ** 2) - means**2
    entropy = -float((shares * np.log(np.maximum(shares, 1e-300))).sum())
    return Expected(
        gains,
        means + scale,
        np.sqrt(np.maximum(squares, 0.0)),
        each @ predicted.logs[:, list(tried)] + scale,
        now.none,
        math.exp(entropy),
    )
