"""The forecast: calibrated on curves that flatten out, patient with those that arrive late."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autotune as at
from autotune.algorithms.pruners.learning_curve import (
    ForecastParameters,
    Lesson,
    Lessons,
    chance,
    lesson,
    parameters_from,
    span_of,
)
from autotune.algorithms.pruners.rules import PRUNERS, first_of, forecast, slower_than_best
from autotune.backends.simulator import SimCurve, SimPoint
from autotune.schedules import Constant, Cosine, Linear, OneCycle, Schedule, Step, warmed
from autotune.trial import Hardware, Report, State, Stop, Target, Trial
from tests.support.curves import CASES, above_zero, progresses, quick
from tests.support.sims import METRIC, memory, simulate, toy_train

TARGET = Target("acc", 0.9, limit=100)
KNOWN = ForecastParameters(span=0.8, noise=0.1)
LCBENCH = Path(__file__).parents[4] / "shared" / "data" / "lcbench_dev.npz"
Form = Callable[[float], float]


def run(
    metric_values: Form | Sequence[float],
    until: float = 100.0,
    *,
    number: int = 1,
    lr: Schedule | float | None = None,
    progress: bool = True,
    state: State = State.RUNNING,
    metric: str = "acc",
    every: float = 1.0,
) -> Trial:
    """A trial that reports every second, its horizon 100 seconds."""
    seconds = [every * i for i in range(round(until / every) + 1)]
    values = [metric_values(s) for s in seconds] if callable(metric_values) else metric_values
    place = [{"progress": s / 100} if progress else {} for s in seconds]
    reports = tuple(
        Report(i, s, {metric: v, **p})
        for i, (s, v, p) in enumerate(zip(seconds, values, place, strict=True))
    )
    config = {} if lr is None else {"lr": lr}
    return Trial(number, config, state=state, seconds=seconds[-1], reports=reports)


def reached(seconds: float, number: int = 0) -> Trial:
    return run(lambda s: 0.1 + 0.8 * s / seconds, seconds, number=number, state=State.REACHED)


def stopped_at(full: Trial, others: Sequence[Trial], rule: Any, target: Target = TARGET) -> float:
    """Seconds at which a running trial is stopped, infinite if it reaches the target before."""
    for count in range(1, len(full.reports) + 1):
        seen = full.reports[:count]
        now = Trial(full.number, full.config, reports=seen, seconds=seen[-1].seconds)
        if target.met(seen):
            return math.inf
        if rule(now, others, target) is not None:
            return now.seconds
    return math.inf


def saturating(rng: np.random.Generator) -> Form:
    """An exponential or a power law from 0.1 up, with noise."""
    end, noise = rng.uniform(0.6, 1.05), 10 ** rng.uniform(-3.5, -2)
    if rng.random() < 0.5:
        pace = 10 ** rng.uniform(0, 2)
        return lambda s: end - (end - 0.1) * math.exp(-s / pace) + noise * rng.normal()
    power, begun = rng.uniform(0.3, 1.5), 10 ** rng.uniform(-1, 1)
    return lambda s: end - (end - 0.1) * (1 + s / begun) ** -power + noise * rng.normal()


@pytest.mark.parametrize("every", [pytest.param(1.0, marks=pytest.mark.slow), 3.0])
def test_few_that_will_reach_are_stopped_and_most_others_are(every: float) -> None:
    rng = np.random.default_rng(0)
    rule, others = forecast(), [reached(80)]
    lost, won, saved, spent = 0, 0, 0.0, 0.0
    for _ in range(300):
        full = run(saturating(rng), 99, every=every)
        hit = next((r.seconds for r in full.reports if r.metrics["acc"] >= 0.9), math.inf)
        stop = stopped_at(full, others, rule)
        won, lost = won + (hit < 80), lost + (hit < 80 and stop < hit)
        if hit == math.inf:
            spent, saved = spent + 99, saved + 99 - min(stop, 99)
    assert won > 60
    assert lost / won <= 0.05
    assert saved / spent > 0.4


@given(st.floats(0.1, 0.5), st.floats(0.1, 1.0))
@quick
def test_what_has_stopped_learning_is_stopped_soon(level: float, jitter: float) -> None:
    full = run(lambda s: level + 0.01 * jitter * math.sin(7 * s), 99)
    assert 4 <= stopped_at(full, [reached(80)], forecast()) < 40


def test_without_an_incumbent_the_limit_is_the_time_to_beat() -> None:
    flat = run(lambda s: 0.5, 60)
    stop = forecast()(flat, [], TARGET)
    assert stop is not None
    assert stop.reason == "forecast"
    assert stop.detail.startswith("acc 0.5 after 60.00 s: ")
    assert stop.detail.endswith("% chance of 0.9 by 100.00 s")
    slow = run(lambda s: 0.1 + 0.009 * s, 60)  # at 0.9 after 89 s
    assert forecast()(slow, [], TARGET) is None
    assert forecast(factor=1.0)(slow, [reached(64)], TARGET) is not None


def test_only_an_incumbent_on_equal_hardware_counts() -> None:
    slow = run(lambda s: 0.1 + 0.009 * s, 30)
    fast = reached(31)
    assert forecast(factor=1.0)(slow, [fast], TARGET) is not None
    elsewhere = Trial(
        **{**{f: getattr(fast, f) for f in fast.__dataclass_fields__}, "hardware": Hardware("gpu")}
    )
    assert forecast(factor=1.0)(slow, [elsewhere], TARGET) is None


# --- late bloomers --------------------------------------------------------------------------------


def blooming(lr: Schedule, gain: float, floor: float = 0.001) -> Form:
    """Accuracy 0.6 soon; the rest comes as the learning rate falls from its peak."""
    rates = lr(np.linspace(0, 1, 401))
    peak, full = float(rates.max()), math.log(rates.max() / max(rates.min(), floor * rates.max()))

    def bloom(seconds: float) -> float:
        place = seconds / 100
        rate = max(float(lr(place)), floor * peak)
        warm = place < float(np.linspace(0, 1, 401)[int(rates.argmax())])
        fallen = 0.0 if warm else math.log(peak / rate) / full
        return 0.1 + 0.5 * (1 - math.exp(-seconds / 8)) + gain * fallen

    return bloom


LATE = {
    "one-cycle": OneCycle(0.01, 1.0, 0.0001, 0.3),
    "steps": Step(1.0, 0.01, (0.45, 0.7)),
    "cosine": warmed(Cosine(1.0, 0.0), 0.05),
}


@pytest.mark.parametrize("name", LATE)
def test_a_late_bloomer_is_awaited_and_its_like_without_decay_is_not(name: str) -> None:
    late_curve, others = blooming(LATE[name], 0.4), [reached(90)]
    full = run(late_curve, 99, lr=LATE[name])
    assert max(r.metrics["acc"] for r in full.reports if r.seconds < 50) < 0.85
    assert stopped_at(full, others, forecast()) == math.inf
    hit = next(r.seconds for r in full.reports if r.metrics["acc"] >= 0.9)
    assert stopped_at(full, [reached(hit + 1)], PRUNERS["convergence"]()) == math.inf
    early = lambda s: min(late_curve(s), 0.6)  # noqa: E731
    for lr in (1.0, Constant(1.0)):
        assert stopped_at(run(early, 99, lr=lr), others, forecast()) < 45
    without_progress = run(early, 99, lr=LATE[name], progress=False)
    assert stopped_at(without_progress, others, forecast()) < 45


def test_it_is_stopped_once_nothing_remains_of_the_decay() -> None:
    steps = Step(1.0, 0.01, (0.2, 0.4))
    full = run(blooming(steps, 0.1), 99, lr=steps)
    assert 40 <= stopped_at(full, [reached(90)], forecast()) < 80


def test_decay_that_comes_after_the_cap_does_not_count() -> None:
    steps = Step(1.0, 0.01, (0.95,))
    full = run(lambda s: 0.6, 90, lr=steps)
    assert stopped_at(full, [reached(40)], forecast()) < 40


@pytest.mark.parametrize("rise", [Linear(0.0, 1.0), warmed(Constant(1.0), 0.5), LATE["one-cycle"]])
def test_a_warm_up_is_never_stopped(rise: Schedule) -> None:
    peak = 1.0 if isinstance(rise, Linear) else 0.5 if rise(0.4) < 1 else 0.3
    flat = run(lambda s: 0.1, 99, lr=rise)
    assert stopped_at(flat, [reached(90)], forecast()) > peak * 100
    awake = run(lambda s: 0.1 if s < 100 * peak else 0.1 + 0.03 * (s - 100 * peak), 99, lr=rise)
    assert stopped_at(awake, [reached(85)], forecast()) == math.inf


def test_what_decay_brings_is_learned_from_ended_trials() -> None:
    steps = LATE["steps"]
    rich = run(blooming(steps, 0.4), 99, lr=steps, state=State.CENSORED)
    poor = run(blooming(steps, 0.0), 99, lr=steps, state=State.CENSORED)
    assert lesson(poor, TARGET).noises == lesson(rich, TARGET).noises == ()
    known = [Lessons().parameters([ended] * 8, TARGET, 0.1) for ended in (poor, rich)]
    assert known[0] is not None
    assert known[1] is not None
    assert known[0].rise < 0.05 < known[1].rise
    now = run(lambda s: 0.6, 40, lr=steps)
    assert chance(now, 100, TARGET, known[0]) < chance(now, 100, TARGET, known[1])


def test_noise_is_learned_from_trials_that_came_further_than_was_forecast() -> None:
    late = run(lambda s: 0.1 + 0.75 / (1 + math.exp((60 - s) / 4)), 99, state=State.CENSORED)
    plain = run(lambda s: 0.8 - 0.7 * math.exp(-s / 10), 99, state=State.CENSORED)
    lessons = [Lessons().parameters([ended], TARGET, 0.1) for ended in (late, plain)]
    assert [k and k.span for k in lessons] == pytest.approx([0.8, 0.8], rel=1e-3)
    assert lessons[0] is not None
    assert lessons[0].noise > 0.3
    assert lessons[1] is not None
    assert lessons[1].noise == 0.1


def test_a_floor_keeps_those_that_pause_before_they_rise_again() -> None:
    pausing = run(lambda s: 0.75 - 0.65 * math.exp(-s / 3) + 0.2 / (1 + math.exp(32 - s)), 99)
    assert stopped_at(pausing, [reached(80)], forecast(floor=0.001)) < 30
    assert stopped_at(pausing, [reached(80)], forecast(floor=0.1)) == math.inf
    now = run(lambda s: 0.7 - 0.6 * math.exp(-s / 3), 30)
    chances = [
        chance(now, 90, TARGET, ForecastParameters(0.8, floor)) for floor in (0.01, 0.1, 0.2, 0.5)
    ]
    assert chances == sorted(chances)
    assert chances[0] < 0.01 < 0.2 < chances[-1]


# --- edges ----------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e6), st.floats(-10, 10))
@quick
def test_the_unit_of_the_metric_does_not_matter(scale: float, shift: float) -> None:
    own = run(lambda s: 0.8 - 0.7 * math.exp(-s / 20), 30)
    loss = run(lambda s: scale * (shift - 0.8 + 0.7 * math.exp(-s / 20)), 30)
    least = Target("acc", scale * (shift - 0.9), mode="min", limit=100)
    known = ForecastParameters(KNOWN.span * scale, KNOWN.noise)
    assert chance(loss, 90, least, known) == pytest.approx(chance(own, 90, TARGET, KNOWN), rel=1e-3)


def test_a_loss_is_forecast_downwards() -> None:
    target = Target("loss", 0.3, mode="min", limit=100)
    fine = run(lambda s: 0.2 + 2.1 * math.exp(-s / 25), 30, metric="loss")
    poor = run(lambda s: 1.5 + 0.8 * math.exp(-s / 5), 30, metric="loss")
    assert forecast()(fine, [], target) is None
    assert forecast()(poor, [], target) is not None


def test_values_that_are_not_finite_show_nothing() -> None:
    bad = [math.nan, math.inf, -math.inf]
    for value in bad:
        nothing = run([value] * 31, 30)
        assert forecast()(nothing, [reached(40)], TARGET) is None
        assert chance(nothing, 40, TARGET, KNOWN) == 1
        assert lesson(nothing, TARGET) == Lesson()
    sound = run(lambda s: 0.5, 30)
    mixed = run([bad[i % 3] if i % 2 else 0.5 for i in range(31)], 30)
    assert chance(mixed, 60, TARGET, KNOWN) == pytest.approx(
        chance(sound, 60, TARGET, KNOWN), abs=0.01
    )
    assert forecast()(mixed, [nothing, reached(40)], TARGET) is not None


def test_a_loss_that_began_astronomically_high_upsets_nothing() -> None:
    target = Target("loss", 0.3, mode="min", limit=100)
    usual = [
        run(lambda s: 0.5 + 1.8 * math.exp(-s / 9), 99, number=n, metric="loss") for n in (2, 3, 4)
    ]
    wild = run(lambda s: 1e200 if s < 10 else 1.5, 70, metric="loss")
    ended = run(lambda s: 1e9 if s < 31 else 0.5, 60, number=5, metric="loss", state=State.CENSORED)
    assert forecast()(wild, usual, target) is not None
    for other in (ended, run(lambda s: 1e300 * (61 - s), 60, metric="loss", state=State.CENSORED)):
        known = Lessons().parameters([*usual, other], target, 0.1)
        assert known is not None
        assert 0.1 <= known.noise <= 1
        assert (
            forecast()(run(lambda s: 2.0, 70, metric="loss"), [*usual, other], target) is not None
        )


def test_nothing_is_predicted_before_there_are_reports_enough() -> None:
    for least in (4, 9):
        flat = run(lambda s: 0.1, 99)
        assert stopped_at(flat, [reached(30)], forecast(least_reports=least)) >= least
    assert chance(Trial(1, {}), 10, TARGET, KNOWN) == 1
    assert Lessons().parameters([], TARGET, 0.1) is None
    assert parameters_from([], 2.0, 0.3) == ForecastParameters(2.0, 0.3)
    assert span_of([run(lambda s: 1.0, 3), Trial(2, {})], TARGET) == 0


def test_a_report_that_ends_the_set_up_is_not_the_first_of_the_metric() -> None:
    def after_setup(trial: Trial) -> Trial:
        return replace(trial, reports=(Report(0, 0.0, {}), *trial.reports[1:]))

    flat, others = after_setup(run(lambda s: 0.5, 60)), [after_setup(reached(80))]
    assert span_of([flat], TARGET) == pytest.approx(0.4)
    assert stopped_at(flat, others, forecast()) < 40


def test_at_the_cap_nothing_is_left_to_forecast() -> None:
    flat = run(lambda s: 0.1, 50)
    assert chance(flat, 50, TARGET, KNOWN) == 0
    assert forecast()(flat, [reached(40)], TARGET) is None
    both = PRUNERS["forecast"]()(flat, [reached(40)], TARGET)
    assert both == Stop("capped", "50.00 s spent, trial 0 took 40.00 s")


@given(CASES[OneCycle].some | CASES[Step].some | st.builds(Cosine, above_zero, above_zero))
@quick
def test_any_schedule_gives_a_probability(lr: Schedule) -> None:
    for until in (5, 40, 90):
        found = chance(run(lambda s: 0.5, until, lr=lr), 100, TARGET, KNOWN)
        assert 0 <= found <= 1


@given(progresses)
@quick
def test_more_time_is_never_a_smaller_chance(share: float) -> None:
    now = run(lambda s: 0.8 - 0.7 * math.exp(-s / 20), 30, lr=LATE["steps"])
    cap = 31 + 60 * share
    assert chance(now, cap, TARGET, KNOWN) <= chance(now, cap + 5, TARGET, KNOWN) + 1e-9


def test_what_a_pruner_has_seen_before_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    ended = [run(saturating(rng), 99, number=n, state=State.CENSORED) for n in range(2, 12)]
    used, now = forecast(), run(saturating(rng), 20)
    for count in range(len(ended)):
        used(now, ended[:count], TARGET)
        used(now, [reached(50, number=2), *ended[3:]], TARGET)
    assert used(now, ended, TARGET) == forecast()(now, ended, TARGET)


@pytest.mark.parametrize(
    "wrong",
    [{"chance": 0}, {"least_reports": 3}, {"least_reports": 4.5}, {"floor": 0}, {"factor": 0.9}],
)
def test_arguments_outside_their_range_are_refused(wrong: Mapping[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"forecast {name} must .* but got {wrong[name]}"):
        forecast(**wrong)


def test_a_decision_takes_about_a_millisecond() -> None:
    rng, lr = np.random.default_rng(2), LATE["cosine"]
    others = [
        run(saturating(rng), 99, number=n, lr=lr, state=State.CENSORED) for n in range(2, 202)
    ]
    rule, now = forecast(), run(lambda s: 0.1 + 0.008 * s, 99, lr=lr)
    rule(now, others, TARGET)
    took = []
    for _ in range(20):
        begun = time.thread_time()
        rule(now, others, TARGET)
        took.append(time.thread_time() - begun)
    assert min(took) < 1e-2  # of a core; well under 1 ms on an idle machine


# --- studies --------------------------------------------------------------------------------------


def studied(config: Mapping[str, Any], seed: int) -> SimCurve:
    """Ends at `end` after 50 virtual seconds; a report each second, without metrics after set-up.

    That is what the trainers of this package report.
    """
    curve_values = [config["end"] * (1 - math.exp(-t / 8)) for t in range(51)]
    trained = [
        SimPoint(t, float(t), {METRIC: v, "progress": t / 50}) for t, v in enumerate(curve_values)
    ]
    return SimCurve([SimPoint(0, 0.0, {}), *trained[1:]])


def test_a_study_stops_by_forecast_and_says_why() -> None:
    space = at.SearchSpace({"end": at.Float(0.01, 2)})
    ends = [{"end": e} for e in (1.0, 0.3, 1.2, 0.5, 0.1)]
    experiment = at.Experiment(
        "ends", toy_train, space, Target(METRIC, 0.9, limit=50), baseline=ends[0], configs=ends[1:]
    )
    with memory() as folder:
        result = simulate(experiment, folder / "study", 5, studied, pruner="forecast")
    assert result.best is not None
    assert result.best.config["end"] == 1.2
    stopped = [t for t in result.trials if t.reason == "forecast"]
    assert [t.config["end"] for t in stopped] == [0.3, 0.5, 0.1]
    for trial in stopped:
        assert trial.state is State.CENSORED
        assert trial.seconds < 15
        assert f"{METRIC} " in trial.detail
        assert "% chance of 0.9 by " in trial.detail
    assert result.trials[0].reason != "forecast"


@pytest.mark.skipif(not LCBENCH.is_file(), reason="recorded curves are not here")
def test_recorded_winners_are_rarely_stopped() -> None:
    with np.load(LCBENCH, allow_pickle=False) as file:
        accuracy = file["val_accuracy"][0].astype(float)
        seconds = np.maximum.accumulate(file["time"][0].astype(float), axis=1)
    target = Target("acc", float(np.quantile(accuracy.max(axis=1), 0.95)), limit=float("1e9"))
    limit = float(np.median(seconds[:, -1]))
    target = Target("acc", target.value, limit=limit)

    def full(row: int, state: State = State.RUNNING) -> Trial:
        pairs = zip(seconds[row], accuracy[row], strict=True)
        reports = tuple(Report(i, float(s), {"acc": float(a)}) for i, (s, a) in enumerate(pairs))
        hit = next(
            (n for n, r in enumerate(reports) if r.metrics["acc"] >= target.value), len(reports)
        )
        reports = tuple(r for r in reports[: hit + 1] if r.seconds < limit)
        done = target.met(reports)
        state = State.REACHED if done else state
        return Trial(row, {}, state=state, seconds=reports[-1].seconds, reports=reports)

    ended = [full(row, State.CENSORED) for row in range(60)]
    hits = [full(row) for row in range(60, 1000)]
    hits = [t for t in hits if t.state is State.REACHED]
    middle = sorted(hits, key=lambda t: t.seconds)[len(hits) // 2]
    others = [*(t for t in ended if t.state is State.CENSORED), middle]
    rule = first_of(slower_than_best(1.25), forecast())
    better = [t for t in hits if t.seconds < middle.seconds]
    assert len(better) >= 15
    lost = [t for t in better if stopped_at(t, others, rule, target) < t.seconds]
    assert len(lost) < 0.1 * len(better)
    rest = [t for t in ended if t.state is State.CENSORED]
    spent = sum(min(stopped_at(t, others, rule, target), t.seconds) for t in rest)
    capped = sum(min(t.seconds, 1.25 * middle.seconds) for t in rest)
    assert spent < 0.7 * capped
