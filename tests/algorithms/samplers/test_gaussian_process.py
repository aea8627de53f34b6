"""The Gaussian process against scikit-learn's, and its gradient against differences."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
import scipy.optimize
import threadpoolctl
from counting import blas_threads
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from autotune.algorithms.samplers.gaussian_process import (
    Hyper,
    Process,
    fit,
    negative_log_posterior,
    prior_medians,
)
from autotune.blas_threads import on_one_thread


def data(count: int = 24) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    x = random.random((count, 3))
    y = np.sin(5 * x[:, 0]) + 0.1 * random.normal(size=count)
    return x, y, random.uniform(1, 3, count)


def test_it_expects_what_scikit_learn_expects() -> None:
    x, y, weights = data()
    hyper = Hyper(np.log([0.3, 0.8, 2.0]), math.log(1.7), math.log(0.05))
    kernel = ConstantKernel(1.7) * Matern([0.3, 0.8, 2.0], nu=2.5)
    peer = GaussianProcessRegressor(kernel, alpha=0.05 * weights + 1e-8, optimizer=None)
    peer.fit(x, y - y.mean())
    z = np.random.default_rng(4).random((10, 3))
    expected, unsure = peer.predict(z, return_std=True)
    own, sure = Process(x, y, weights, hyper).at(z)
    assert own == pytest.approx(expected + y.mean(), abs=1e-6)
    assert sure == pytest.approx(unsure, abs=1e-5)


def test_the_gradient_is_that_of_the_value() -> None:
    x, y, weights = data(12)
    squares = (x.T[:, :, None] - x.T[:, None, :]) ** 2
    logs = np.array([-0.5, 0.2, 0.7, 0.3, -2.0])
    _, gradient = negative_log_posterior(logs, squares, y - y.mean(), weights)
    for i, slope in enumerate(gradient):
        step = np.zeros(5)
        step[i] = 1e-5
        above, below = (
            negative_log_posterior(logs + s * step, squares, y - y.mean(), weights)[0]
            for s in (1, -1)
        )
        assert slope == pytest.approx((above - below) / 2e-5, abs=1e-4)


def test_a_fit_finds_the_feature_that_matters() -> None:
    x, y, weights = data(60)
    hyper = fit(x, y, weights)
    assert hyper.scales[0] < min(hyper.scales[1:])
    z = np.random.default_rng(5).random((50, 3))
    truth = np.sin(5 * z[:, 0])
    better = np.abs(Process(x, y, weights, hyper).at(z)[0] - truth).mean()
    assert better < np.abs(Process(x, y, weights, prior_medians(3)).at(z)[0] - truth).mean()
    assert better < 0.15


def test_it_is_sure_where_it_has_seen_and_unsure_far_away() -> None:
    x, y, weights = data()
    process = Process(x, y, weights, Hyper(np.log([0.2] * 3), 0.0, math.log(1e-4)))
    _, seen = process.at(x)
    _, far = process.at(np.full((1, 3), 9.0))
    assert seen.max() < 0.05 < far[0] == pytest.approx(1.0)


def test_the_model_is_fitted_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, minimize = set[int](), scipy.optimize.minimize

    def spied(*given: object, **named: object) -> object:
        seen.update(blas_threads())
        return minimize(*given, **named)

    def fails(*given: object, **named: object) -> object:
        assert blas_threads() == {1}
        raise ValueError("wrong")

    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        monkeypatch.setattr(scipy.optimize, "minimize", spied)
        fit(*data())
        assert seen == {1}
        assert blas_threads() == {3}, "those that they had"
        monkeypatch.setattr(scipy.optimize, "minimize", fails)
        with pytest.raises(ValueError, match="wrong"):
            fit(*data())
        assert blas_threads() == {3}


def test_calls_at_once_leave_as_many_threads_as_there_were() -> None:
    before, both, one_ended = blas_threads(), Event(), Event()

    @on_one_thread
    def first() -> set[int]:
        assert both.wait(600)
        return blas_threads()

    @on_one_thread
    def second() -> None:
        both.set()
        assert one_ended.wait(600)

    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(first), threads.submit(second)
        assert running[0].result() == {1}
        one_ended.set()
        running[1].result()
    assert blas_threads() == before
