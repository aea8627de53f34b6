"""Gaussian-process regression over points in the unit cube: mean and standard deviation.

Matern kernel of smoothness 5/2 with a length scale for each feature, fitted by the most probable
hyperparameters (Rasmussen and Williams 2006, chapters 2 and 5; Snoek et al. 2012 for the kernel).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.blas_threads import on_one_thread

Array = NDArray[np.float64]

_ROOT = math.sqrt(5.0)
_JITTER = 1e-8
_SCALE, _SIGNAL, _NOISE = math.log(0.7), 0.0, math.log(0.1)  # the priors' medians, as logarithms
_SPREADS = (0.8, 1.0, 1.0)  # and their standard deviations
_BOUNDS = ((-4.0, 3.0), (-4.0, 3.0), (-7.0, 1.0))


@dataclass(frozen=True)
class Hyper:
    """Logarithms: a length scale for each feature, the signal's variance, the noise's variance."""

    scales: Array
    signal: float
    noise: float


def prior_medians(features: int) -> Hyper:
    """The hyperparameters before any data: the medians of their log-normal priors."""
    return Hyper(np.full(features, _SCALE), _SIGNAL, _NOISE)


def matern(x: Array, z: Array, scales: Array) -> Array:
    """Correlations of the rows of `x` (n, d) with those of `z` (m, d): (n, m)."""
    a, b = x / np.exp(scales), z / np.exp(scales)
    square = np.maximum((a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T, 0.0)
    root = _ROOT * np.sqrt(square)
    correlations: Array = (1 + root + 5 / 3 * square) * np.exp(-root)
    return correlations


class Process:
    """A Gaussian process conditioned on values at points.

    Args:
        x: the points, (n, d), from 0 to 1.
        y: the values, (n,).
        weights: multiple of the noise's variance for each value, (n,).
        hyper: see `Hyper`.
        mean: what is expected far from all points; by default the mean of the values.
    """

    @on_one_thread
    def __init__(
        self, x: Array, y: Array, weights: Array, hyper: Hyper, mean: float | None = None
    ) -> None:
        from scipy.linalg import cho_solve

        self._x, self._hyper = x, hyper
        self._mean = float(y.mean()) if mean is None else mean
        covariance = math.exp(hyper.signal) * matern(x, x, hyper.scales)
        covariance[np.diag_indices_from(covariance)] += math.exp(hyper.noise) * weights + _JITTER
        self._lower = np.linalg.cholesky(covariance)
        self._weights = cho_solve((self._lower, True), y - self._mean)

    @on_one_thread
    def at(self, z: Array) -> tuple[Array, Array]:
        """The means at the rows of `z`, and the standard deviations without noise."""
        from scipy.linalg import solve_triangular

        signal = math.exp(self._hyper.signal)
        cross = signal * matern(z, self._x, self._hyper.scales)
        known = solve_triangular(self._lower, cross.T, lower=True)
        variance = np.maximum(signal - (known * known).sum(0), 1e-12)
        return cross @ self._weights + self._mean, np.sqrt(variance)


@on_one_thread
def fit(
    x: Array, y: Array, weights: Array, iterations: int = 12, mean: float | None = None
) -> Hyper:
    """The most probable hyperparameters for the values `y` at the points `x`.

    Args:
        x, y, weights, mean: see `Process`.
        iterations: of L-BFGS, from the medians of the priors.
    """
    from scipy.optimize import minimize

    count = x.shape[1]
    squares = (x.T[:, :, None] - x.T[:, None, :]) ** 2
    start = prior_medians(count)
    first = np.r_[start.scales, start.signal, start.noise]
    bounds = [_BOUNDS[0]] * count + [_BOUNDS[1], _BOUNDS[2]]
    result: Any = minimize(
        negative_log_posterior,
        first,
        (squares, y - (y.mean() if mean is None else mean), weights),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": iterations},
    )
    return Hyper(result.x[:count], float(result.x[count]), float(result.x[count + 1]))


def negative_log_posterior(
    logs: Array, squares: Array, y: Array, weights: Array
) -> tuple[float, Array]:
    """The negative log posterior of hyperparameters and its gradient.

    Args:
        logs: length scales, signal and noise, (d + 2,).
        squares: the squared distances of the points in each feature, (d, n, n).
        y: the values less their mean, (n,).
    """
    from scipy.linalg import solve_triangular

    count = len(squares)
    inverse, signal, noise = np.exp(-2 * logs[:count]), math.exp(logs[-2]), math.exp(logs[-1])
    square = np.maximum(np.tensordot(inverse, squares, 1), 1e-12)
    root = _ROOT * np.sqrt(square)
    decay = np.exp(-root)
    correlations = (1 + root + 5 / 3 * square) * decay
    covariance = signal * correlations
    covariance[np.diag_indices_from(covariance)] += noise * weights + _JITTER
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(logs)
    half = solve_triangular(lower, np.eye(len(y)), lower=True)
    precision = half.T @ half
    solved = precision @ y
    value = 0.5 * float(y @ solved) + float(np.log(np.diag(lower)).sum())
    slope = 0.5 * (precision - np.outer(solved, solved))
    by_distance = slope * (signal * 5 / 3 * (1 + root) * decay)
    gradient = np.empty_like(logs)
    gradient[:count] = inverse * np.tensordot(squares, by_distance, 2)
    gradient[-2] = signal * float((slope * correlations).sum())
    gradient[-1] = noise * float(np.diag(slope) @ weights)
    medians = np.r_[np.full(count, _SCALE), _SIGNAL, _NOISE]
    spreads = np.r_[np.full(count, _SPREADS[0]), _SPREADS[1], _SPREADS[2]]
    away = (logs - medians) / spreads
    return value + 0.5 * float(away @ away), gradient + away / spreads
