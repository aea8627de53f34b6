"""The controller of batch sizes: they double below the noise scale, and never shrink."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learning_rate_problem import METRIC, problem, train_live
from sims import simulate

import autotune as at
from autotune.algorithms.controllers import noise_scale
from autotune.algorithms.controllers.noise_scale import POWERS
from autotune.evaluation.export.replay import SamePoint
from autotune.trial import Change, Report, Target, Trial

TARGET = Target(METRIC, 0.97, limit=40.0)
SIZES = st.integers(1, 4096)
NOISES = st.floats(0, 1e9) | st.just(math.inf) | st.just(math.nan) | st.none()


def trial(*sizes: float, noise: float | None, **config: Any) -> Trial:
    """With these batch sizes, one a report."""
    last: dict[str, float] = {"gradient_variance": 1.0}
    last |= {} if noise is None else {"gradient_noise_scale": noise}
    reports = [Report(i, float(i), {"batch_size": size, **last}) for i, size in enumerate(sizes, 1)]
    return Trial(0, config, reports=tuple(reports), seconds=float(len(reports)))


@given(first=SIZES, now=SIZES, noise=NOISES, share=st.floats(0.01, 10), most=st.floats(2, 64))
def test_it_only_doubles_and_only_up_to_its_bounds(
    first: int, now: int, noise: float | None, share: float, most: float
) -> None:
    change = noise_scale(share, most=most)(trial(first, now, noise=noise), (), TARGET)
    doubles = noise is not None and 2 * now <= share * noise and 2 * now <= most * first
    assert change == (Change(lr_factor=math.sqrt(2), batch_size=2 * now) if doubles else None)


@pytest.mark.parametrize("rule", POWERS)
def test_the_learning_rate_grows_by_the_rule(rule: str) -> None:
    factor = {"constant": 1.0, "sqrt": math.sqrt(2), "linear": 2.0}[rule]
    change = noise_scale(lr=rule)(trial(64, noise=128.0, lr=0.1, batch_size=64), (), TARGET)
    assert change == Change(lr_factor=factor, batch_size=128)


def test_a_learning_rate_that_follows_the_batch_size_is_left_to_it() -> None:
    batch = at.Linear(64, 128)
    lr = at.Following(at.Constant(0.1), batch, 0.5, 64)
    change = noise_scale()(trial(64, noise=500.0, lr=lr, batch_size=batch), (), TARGET)
    assert change == Change(lr_factor=1.0, batch_size=128)


def test_a_study_grows_its_batches_but_not_the_baselines(fast_path: Path) -> None:
    experiment = problem(0.1, knobs=("lr", "batch_size"), baseline={"lr": 0.1})
    asked = {"sampler": SamePoint(), "pruner": "none", "controller": "noise_scale(most=4)"}
    result = simulate(experiment, fast_path, 3, train_live, **asked)
    baseline, *others = result.trials
    assert baseline.kind == "baseline"
    assert baseline.changes == ()
    for other in others:
        # 32 * 2^(s / 4) is twice 64 at 8 seconds, twice 128 at 12; four times 64 is the most
        assert [(step, change.batch_size) for step, change in other.changes] == [
            (8, 128),
            (12, 256),
        ]


def test_a_trainer_that_measures_nothing_gets_one_clear_line() -> None:
    reports = (Report(0, 0.0, {METRIC: 0.1}), Report(1, 1.0, {METRIC: 0.2, "batch_size": 64.0}))
    silent = Trial(0, {}, reports=reports, seconds=1.0)
    with pytest.raises(at.UserError) as raised:
        noise_scale()(silent, (), TARGET)
    assert "needs the metric 'gradient_noise_scale'" in str(raised.value)
    assert "noise_scale_every" in str(raised.value)
    assert "\n" not in str(raised.value)
    before = Trial(0, {}, reports=reports[:1])
    assert noise_scale()(before, (), TARGET) is None, "nothing is trained yet"
