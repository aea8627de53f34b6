"""The ways of scoring that `benchmarks/scorings.py` compares: their parts, and that each learns."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from scipy.stats import truncnorm

from autotune.trial import Report, State, Target, Trial

FOLDER = str(Path(__file__).parents[2] / "benchmarks")
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

import scorings  # noqa: E402

TARGET = Target("acc", 0.9, limit=100.0)


def trial(number: int, place: float, cap: float = 40.0) -> Trial:
    """Its time to target is 10 s at place 0 and 160 s at place 1; it is stopped at `cap`."""
    seconds = 10 * 16**place
    reached = seconds < cap
    until = min(seconds, cap)
    reports = tuple(
        Report(i, s, {"acc": 0.9 * math.log1p(s) / math.log1p(seconds)})
        for i, s in enumerate(np.linspace(0.1, 1.0, 10) * until)
    )
    state = State.REACHED if reached else State.CENSORED
    reason = "target" if reached else "capped"
    return Trial(
        number,
        {},
        {"x": place},
        state=state,
        reason=reason,
        seconds=until,
        reports=reports,
        ended_at=float(number),
    )


@pytest.mark.parametrize("name", scorings.SCORINGS)
def test_each_proposes_fast_ones_though_most_were_stopped(name: str) -> None:
    random = Random(1)
    places = [random.random() for _ in range(48)]
    trials = [trial(i, p) for i, p in enumerate(places)]
    assert sum(t.state is State.CENSORED for t in trials) > 16
    torch.manual_seed(0)
    pick = scorings.SCORINGS[name](np.array(places)[:, None], trials, TARGET)
    candidates = np.linspace(0.0, 1.0, 50)[:, None]
    chosen = [float(candidates[pick(candidates, Random(i)), 0]) for i in range(15)]
    assert np.median(chosen) < 0.3


def test_the_truncated_mean_is_that_of_scipy() -> None:
    means, spreads, bounds = np.array([0.0, -1.0, 0.5]), np.array([1.0, 0.3, 2.0]), np.zeros(3)
    places = (bounds - means) / spreads
    wanted = truncnorm.mean(places, np.inf, loc=means, scale=spreads)
    assert scorings.truncated_mean(means, spreads, bounds) == pytest.approx(
        np.minimum(wanted, scorings.LATEST)
    )


def test_a_line_over_log_time_is_drawn_on_to_the_target() -> None:
    reports = tuple(Report(i, math.exp(i), {"acc": 0.1 + 0.2 * i}) for i in range(4))
    stopped = Trial(0, {}, {}, state=State.CENSORED, reason="capped", reports=reports, seconds=20.1)
    assert scorings._meets(stopped, TARGET) == pytest.approx(math.exp(4))
    falling = tuple(Report(i, math.exp(i), {"acc": 0.5 - 0.1 * i}) for i in range(4))
    hopeless = Trial(0, {}, {}, state=State.CENSORED, reason="capped", reports=falling)
    assert scorings._meets(hopeless, TARGET) == 1000.0


def test_scores_of_equal_ones_are_equal_and_faster_is_less() -> None:
    scores = scorings.normal_scores({7: 3.0, 1: 1.0, 2: 3.0, 5: 9.0})
    assert scores[7] == scores[2]
    assert scores[1] < scores[2] < scores[5]
