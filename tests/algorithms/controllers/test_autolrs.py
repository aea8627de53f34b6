"""AutoLRS: stages are searched from one checkpoint, by forks that replace each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import populations
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sims import METRIC, lines

import autotune as at
from autotune.algorithms.controllers import make_controller
from autotune.algorithms.controllers.autolrs import AutoLRS, autolrs, forecast
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.storage import journal
from autotune.study.factory import _controller
from autotune.trial import Checkpoint, Fork, Origin, Report, Trial

CALL = "autolrs(stage=5, candidates=4, explore=2)"
TARGET = at.Target(METRIC, 0.9, limit=40)


def study(folder: Path, trials: int = 40, **options: Any) -> at.StudyResult:
    asked = {"workers": 1, "controller": CALL, "pruner": "none", "seed": 3, **options}
    return populations.study(folder, trials, **asked)


def begun_at(trial: Trial) -> int:
    return trial.origin.checkpoint.step if trial.origin is not None else -1


def stages(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The forks of a single line by where they began."""
    steps = sorted({begun_at(t) for t in trials} - {-1})
    return [[t for t in trials if begun_at(t) == step] for step in steps]


def first_line(result: at.StudyResult) -> list[Trial]:
    """The forks of the first root, where there is one worker."""
    roots = [t.number for t in result.trials if t.origin is None]
    end = roots[1] if len(roots) > 1 else len(result.trials)
    return [t for t in result.trials if 0 < t.number < end]


# --- stages ---------------------------------------------------------------------------------------


def test_a_stage_tries_learning_rates_from_one_checkpoint_and_trains_the_best(
    fast_path: Path,
) -> None:
    found = stages(first_line(study(fast_path)))[:-1]  # the last may have been cut short
    assert len(found) > 3
    rates = [[t.config["lr"] for t in stage] for stage in found]
    for before, stage, lrs in zip(found, found[1:], rates[1:], strict=False):
        assert lrs[0] == before[-1].config["lr"], "the first is what the stage before has had"
        assert len({*lrs[:4]}) == 4
        for trial in stage[:3]:
            spent = trial.seconds - trial.origin.reports[-1].seconds
            assert 2 <= spent < 2.6, "each trains for two seconds, to the next milestone"
        assert stage[0].origin.parent == before[-1].number
        assert [t.origin.parent for t in stage[1:]] == [t.number for t in stage[:-1]]
    for stage, lrs in zip(found, rates, strict=True):
        assert len(stage) in (4, 5), "the last that is tried goes on if it is the best"
        own = {t.config["lr"]: t.reports for t in stage[:4]}
        start = stage[0].origin.reports[-1].seconds
        reached = {
            lr: next(r.metrics[METRIC] for r in reports if r.seconds >= start + 2)
            for lr, reports in own.items()
        }
        assert lrs[-1] == max(reached, key=reached.__getitem__), "the gap shrinks at its rate"


def test_its_learning_rates_follow_the_best(fast_path: Path) -> None:
    """The first is 140 times too small."""
    done = [s[-1] for s in stages(first_line(study(fast_path)))[:-1]]
    ahead = [abs(math.log(t.config["lr"] / populations.best_lr(t.seconds))) for t in done[2:]]
    assert np.mean(ahead) < math.log(4)


def test_it_gets_further_than_the_wrong_learning_rate_that_it_begins_with(fast_path: Path) -> None:
    space = at.SearchSpace({"lr": at.Float(1e-3, 1.0, log=True), "width": at.Fixed(2)})
    experiment = at.Experiment("wrong", lambda config: None, space, TARGET)
    given = {"experiment": experiment, "sampler": First(), "workers": 1}
    plain = study(fast_path / "a", 1, **given, controller="none").trials
    turned = first_line(study(fast_path / "b", 40, **given))
    assert max(r.metrics[METRIC] for t in plain for r in t.reports) < 0.2
    assert max(r.metrics[METRIC] for t in turned for r in t.reports) > 0.8


class First:
    """A sampler with one point."""

    def ask(self, number: int, trials: Sequence[Trial]) -> Mapping[str, Any]:
        return {"lr": 0.002}


def test_several_lines_do_not_touch_each_other(fast_path: Path) -> None:
    result = study(fast_path, 80, workers=3)
    by_number = {t.number: t for t in result.trials}

    def root(trial: Trial) -> int:
        return root(by_number[trial.origin.replaces]) if trial.origin is not None else trial.number

    lines = [[t for t in result.trials if root(t) == number] for number in (0, 1, 2)]
    for line in lines:
        assert len({t.seed for t in line}) == 1
        assert len(stages(line)) > 2
        assert all(len(stage) in (4, 5) for stage in stages(line)[:-1])
        running = sorted((t.placed_since, t.ended_at) for t in line)
        assert all(a[1] <= b[0] for a, b in pairwise(running))


def test_the_same_journal_again_and_after_a_resume(fast_path: Path) -> None:
    study(fast_path / "a")
    study(fast_path / "b")
    assert lines(fast_path / "a") == lines(fast_path / "b")
    short = study(fast_path / "c", 12)
    assert [t.config for t in short.trials] == [
        t.config for t in study(fast_path / "a").trials[:12]
    ]
    longer = study(fast_path / "c", 40)
    assert longer.trials[:11] == short.trials[:11]
    assert len(longer.trials) == 40
    journal.read(fast_path / "c")


# --- what diverges --------------------------------------------------------------------------------


def unstable(config: Mapping[str, Any], seed: int, point: SimPoint) -> SimCurve:
    """Learning rates above 0.1 give no finite loss."""
    if config["lr"] <= 0.1:
        return populations.trained(config, seed, point)
    later = SimPoint(point.step + 100, point.seconds + 0.5, {METRIC: 0.0, "val_loss": math.nan})
    return SimCurve([point, later])


def test_a_learning_rate_that_diverges_does_not_end_the_line(fast_path: Path) -> None:
    pool = SimPool(populations.from_scratch, 1, go_on=unstable)
    result = at.run(
        populations.experiment(),
        trials=40,
        out=fast_path,
        pool=pool,
        sampler="random",
        controller=CALL,
        pruner="none",
        seed=3,
        tracking_uri="off",
    )
    tried = [t for t in first_line(result) if t.config["lr"] > 0.1]
    assert tried, "or this shows nothing"
    for trial in tried:
        assert trial.reason == "exploited"
        assert result.trials[trial.number + 1].origin.replaces == trial.number
    for stage in stages(first_line(result))[:-1]:
        assert stage[-1].config["lr"] <= 0.1, "the stage is trained with another"


# --- the forecast ---------------------------------------------------------------------------------


@given(
    scale=st.floats(0.1, 10),
    rate=st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0, 8.0]),
    floor=st.floats(0, 5),
    sign=st.sampled_from([-1, 1]),
)
def test_an_exponential_is_forecast(scale: float, rate: float, floor: float, sign: int) -> None:
    times = np.linspace(0.05, 0.4, 8)
    floor += scale if sign < 0 else 0.0
    losses = sign * scale * np.exp(-rate * times) + floor
    end = sign * scale * math.exp(-rate) + floor
    assert forecast(times, losses) == pytest.approx(
        end, abs=0.1 * abs(end - losses[0]) + 0.01 * losses.mean()
    )


def test_a_loss_is_not_forecast_below_0_and_few_values_stay() -> None:
    times = np.linspace(0.1, 0.4, 4)
    assert forecast(times, 1 - 2 * times) > 0
    assert forecast(times, 1 - 2 * times, least=-math.inf) < 0
    assert forecast(times[:2], np.array([3.0, 2.0])) == 2.0


# --- mistakes -------------------------------------------------------------------------------------

MISTAKES = {
    "autolrs(candidates=1)": "autolrs candidates must be a whole number from 2 but got 1",
    "autolrs(stage=0)": "autolrs stage must be more than 0 seconds but got 0",
    "autolrs(stage=2, explore=2)": "autolrs explore must be more than 0 seconds and less than the",
    "autolrs(stage='x')": "controller \"autolrs(stage='x')\": stage must be a number but got 'x'",
    "autolrs(stage=True)": "stage must be a number but got True",
    "autolrs(candidates=2.5)": "autolrs candidates must be a whole number from 2 but got 2.5",
    "autolrs(stages=2)": "unknown argument of autolrs 'stages'; did you mean 'stage'?",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_gets_one_clear_line(text: str) -> None:
    with pytest.raises(at.UserError) as raised:
        _controller(text, populations.experiment(), 0)
    assert MISTAKES[text] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_it_needs_a_learning_rate_and_a_stage() -> None:
    with pytest.raises(at.UserError, match="the space has no Float named lr"):
        autolrs(at.SearchSpace({"lr": at.Fixed(0.1), "width": at.Int(1, 4)}), TARGET)
    with pytest.raises(at.UserError, match="autolrs needs a stage"):
        autolrs(populations.SPACE, at.Target(METRIC))
    with pytest.raises(at.UserError, match="is made from an experiment"):
        make_controller("autolrs", ("lr",))


def test_its_defaults_are_shares_of_the_limit() -> None:
    found = _controller("autolrs", populations.experiment(), 0)
    assert found == AutoLRS(populations.SPACE, stage=8.0, candidates=4, explore=1.0)
    peaks = at.SearchSpace({"lr": at.ScheduleSpace(at.Float(0.01, 1, log=True))})
    assert autolrs(peaks, TARGET).name == "lr.peak"


def tried(number: int, lr: float, values: Sequence[float | None]) -> Trial:
    """A learning rate that has been tried, with the metric where a report has it."""
    reports = tuple(
        Report(10 * (i + 1), 0.5 * (i + 1), {} if value is None else {METRIC: value})
        for i, value in enumerate(values)
    )
    came = Origin(0, number - 1, Checkpoint(0, "there"), {"lr": lr})
    return Trial(number, {"lr": lr}, origin=came, reports=reports, seconds=reports[-1].seconds)


def test_reports_without_the_metric_are_left_out_of_a_forecast() -> None:
    made = AutoLRS(at.SearchSpace({"lr": at.Float(0.003, 1.0, log=True)}), 5.0, 4, 2.0)
    known, some = [0.2, 0.3, 0.4, 0.5], [None, 0.3, None, 0.5]
    line = [tried(1, 0.1, known), tried(2, 0.2, some), tried(3, 0.3, [None] * 4)]
    found = made._forecasts(line, TARGET)
    assert -1 < found[0] < 0.4, "it goes on as it did"
    assert found[1] == pytest.approx(0.4), "too few reports for a curve"
    assert found[2] == math.inf


def test_where_all_diverge_at_the_lower_end_the_next_is_that_end() -> None:
    made = AutoLRS(at.SearchSpace({"lr": at.Float(0.003, 1.0, log=True)}), 5.0, 4, 2.0)
    assert math.exp(math.log(0.003)) < 0.003
    assert made._next([tried(1, 0.003, [math.nan])], TARGET) == 0.003


def test_a_restart_needs_a_fork(fast_path: Path) -> None:
    def restart(trial: Trial, others: Sequence[Trial], target: at.Target) -> Fork | None:
        return Fork(0, dict(trial.point or {}), restart=True) if trial.seconds > 3 else None

    with pytest.raises(at.UserError, match="trial 0, which did not begin with a checkpoint"):
        study(fast_path, controller=restart)
