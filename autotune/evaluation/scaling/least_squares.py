"""Least squares of relative errors with non-negative coefficients, and their bootstrap.

Non-negative least squares: Lawson and Hanson 1974. The intervals (95 %) are those of a bootstrap of
the residuals (Efron and Tibshirani 1993), widened by Student's t for few points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autotune.algorithms.ranking.difference import student_t

Numbers = npt.NDArray[np.float64]
DRAWS = 400
_NORMAL = 1.959964  # half of the width of an interval at 95 % in standard deviations


def relative(features: Numbers, values: Numbers) -> Numbers:
    """The coefficients of least squares of relative errors, none of them negative."""
    from scipy.optimize import nnls

    found: Numbers = nnls(features / values[:, None], np.ones(len(values)))[0]
    return found


def drawn(features: Numbers, values: Numbers, generator: np.random.Generator) -> list[Numbers]:
    """The fitted coefficients, and then those of the bootstrap."""
    own = relative(features, values)
    expected = features @ own
    freedom = max(len(values) - features.shape[1], 1)
    spread = math.sqrt(float(np.square(np.log(values / expected)).sum()) / freedom)
    noise = generator.normal(0.0, spread * student_t(freedom) / _NORMAL, (DRAWS, len(values)))
    return [own, *(relative(features, expected * np.exp(one)) for one in noise)]


def interval(values: Sequence[float], own: float) -> tuple[float, float]:
    """The 95 % of the values, and the own one with them; infinite ones count as greatest."""
    if not values:
        return own, own
    every = sorted(values)
    low = every[math.floor(0.025 * (len(every) - 1))]
    high = every[math.ceil(0.975 * (len(every) - 1))]
    return min(low, own), max(high, own)
