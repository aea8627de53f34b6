"""The numbers of a report."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import pairwise

import made_studies as made
import numpy as np
import pytest
from sims import learning, memory, simulate, wide

from autotune.cli import final, text
from autotune.evaluation import machine, summary
from autotune.evaluation.comparison.ratios import geometric_mean
from autotune.schedules import Cosine
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.tracking.run_content import against_baseline
from autotune.trial import Report, State, Target
from autotune.trial.wording import outcome
from dashboards import importance, tables, time_spent
from dashboards.sections import sections


@pytest.mark.parametrize(("count", "most"), [(0, 5), (1, 5), (5, 5), (6, 5), (1000, 7)])
def test_thinning_keeps_the_ends(count: int, most: int) -> None:
    places = tables.thinned(count, most)
    assert len(places) == min(count, most) == len(set(places))
    assert places == sorted(places)
    assert not count or (places[0], places[-1]) == (0, count - 1)


def test_kaplan_and_meier_of_a_published_trial() -> None:
    """6-MP against leukaemia: Freireich and others 1963, as in every textbook of survival."""
    events = (6, 6, 6, 7, 10, 13, 16, 22, 23)
    stopped = (6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35)
    trials = [made.trial(i, float(s)) for i, s in enumerate(events)]
    trials += [made.trial(50 + i, float(s), State.CENSORED) for i, s in enumerate(stopped)]
    rows = {row["seconds"]: row for row in tables.survival(trials)}
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    for seconds, alive in published.items():
        assert 1 - rows[seconds]["reached"] == pytest.approx(alive, abs=6e-4)
    assert (rows[6]["at_risk"], rows[7]["at_risk"], rows[23]["at_risk"]) == (21, 17, 6)
    assert rows[35]["reached"] == rows[23]["reached"]


def test_failed_and_running_trials_say_nothing_of_the_distribution() -> None:
    assert tables.survival([made.failed(0), made.trial(1, 3.0, State.RUNNING)]) == []


def test_tuning_and_confirmed_times_stand_side_by_side() -> None:
    rows = tables.leaderboard(made.confirmed())
    assert [r["trial"] for r in rows] == [1, 3, 0, 2]
    best, other, baseline, stopped = rows
    assert (best["tuning_result"], best["confirmed_result"], best["repeats"]) == (5.0, 8.0, 3)
    assert (best["confirmed_low"], best["confirmed_high"]) == (7.0, 10.0)
    slow, fast = (next(c for c in made.confirmed().confirmed if c.number == n) for n in (0, 1))
    ratio = geometric_mean(slow.times) / geometric_mean(fast.times)
    assert best["speedup"] == pytest.approx(ratio), "confirmed over confirmed"
    assert (best["of"], other["of"]) == ("confirmed", "tuning")
    assert other["speedup"] == pytest.approx(20 / 6), "nothing is confirmed: one run each"
    assert baseline["confirmed_result"] == 21.0
    assert (stopped["rank"], stopped["tuning_result"]) == (None, None)
    assert stopped["shown_result"] == "> 4.00"
    assert best["samples_per_second"] == pytest.approx(10.0)


def test_repeats_on_busy_hardware_are_reported() -> None:
    """In the report, in the terminal's last lines and by `status`, in the same words."""
    result = made.confirmed()
    assert "epeats of trial" not in sections(result, tables.leaderboard(result))[0].thinned
    busy = [
        replace(t, reports=tuple(replace(r, step=r.step // 3) for r in t.reports))
        if t.kind == "confirm"
        else t
        for t in result.trials
    ]
    slower = made.study(*busy)
    (first, *_) = sections(slower, tables.leaderboard(slower))
    assert "busier: repeats of trial 1 had 33% of the samples per second" in first.thinned
    assert machine.sentences(result) == []
    assert machine.sentences(slower) == [first.thinned]
    for aim in (
        Target("val_accuracy", 0.9, limit_steps=500, clock="steps"),
        Target("val_accuracy"),
    ):
        assert machine.sentences(replace(slower, target=aim)) == [], "no seconds decide"
    assert summary.summary(slower, "s")["machine"] == [first.thinned]
    shown = io.StringIO()
    final.print_result(slower, manifest_of(slower), shown)
    assert "busier: repeats of trial 1 had 33% of the samples" in " ".join(shown.getvalue().split())


def test_disturbed_trials_are_shown_with_their_share() -> None:
    result = made.confirmed()
    waiting = {1: 0.4, 3: 0.25, 5: 0.5}
    trials = [
        replace(t, reports=tuple(waited(r, waiting[t.number]) for r in t.reports))
        if t.number in waiting
        else t
        for t in result.trials
    ]
    study = made.study(*trials)
    (first, *_) = sections(study, tables.leaderboard(study))
    reasons = {row["trial"]: row["reason"] for row in first.rows}
    assert reasons[1].endswith("disturbed (60% of its cores)")
    assert "disturbed" not in reasons[2]
    own, again = machine.sentences(study)[:2]
    assert own.startswith("Other processes disturbed 2 of 4 trials, which had their cores")
    assert "1 (60%), 3 (75%)" in own
    assert "1 of 6 repeats" in again
    assert "disturbed (60% of its cores)" in outcome(study.trials[1], study.target)
    rows = study.to_frame().set_index("trial")
    assert rows.cpu_share[1] == pytest.approx(0.6)
    assert list(rows.index[rows.disturbed]) == [1, 3, 5]
    shown = io.StringIO()
    text.print_status({**summary.summary(study, "s"), "trials_planned": 4, "driver_alive": False},
                      shown)  # fmt: skip
    assert f"  machine: {own}" in shown.getvalue()


@pytest.mark.parametrize(
    ("again", "waits", "ratio", "says"),
    [
        (None, 0.0, 20 / 4, "one run each"),
        (5.0, 0.0, 20 / 5, "one run each"),
        (10.0, 0.5, 20 / 4.5, "the mean of 2 runs against one run"),
    ],
)
def test_a_speedup_is_of_the_times_that_rank(
    again: float | None, waits: float, ratio: float, says: str
) -> None:
    """It was of 10 s, in 6 of which the best trial waited: less than that of the second."""
    slow = made.trial(1, 10.0)
    slow = replace(slow, reports=tuple(waited(r, 0.6) for r in slow.reports))
    races = [made.trial(3, again, kind="race", repeats=1)] if again is not None else []
    races = [
        replace(t, reports=tuple(waited(r, waits) for r in t.reports)) if waits else t
        for t in races
    ]
    study = made.study(made.trial(0, 20.0, kind="baseline"), slow, made.trial(2, 6.0), *races)
    assert study.best is study.trials[1]
    assert study.speedup == pytest.approx(ratio)
    rows = {row["trial"]: row["speedup"] for row in tables.leaderboard(study)}
    assert rows == {0: 1.0, 1: pytest.approx(ratio), 2: pytest.approx(20 / 6)}
    assert against_baseline(slow, study.trials[0], study.target) == {
        "speedup_vs_baseline": pytest.approx(5.0)
    }
    said = final.conclusion(study)
    assert "Best: trial 1 in 10.00 s, disturbed (40% of its cores)" in said
    assert f"{ratio:.2f}x faster ({says}, not confirmed; without what disturbed them)" in said
    mean = {0.0: "5.00 s in its one undisturbed run", 0.5: "4.50 s as the mean of 2 runs"}
    assert not races or mean[waits] in said
    shown = io.StringIO()
    text.print_status({**summary.summary(study, "s"), "trials_planned": 4, "driver_alive": False},
                      shown)  # fmt: skip
    faster = f"  against the baseline: {ratio:.2f}x faster ({says}, not confirmed)"
    assert faster in shown.getvalue()
    assert tables.leaderboard(study)[0]["compared_runs"] == says


def waited(report: Report, share: float) -> Report:
    return replace(report, waited=share * report.clock.seconds("train"))


def manifest_of(result: StudyResult) -> Manifest:
    return Manifest(name="s", study_id="1", target=result.target)


def test_progress_counts_what_repeats_cost_but_not_their_luck() -> None:
    result = made.confirmed()
    rows = tables.progress(result)
    assert rows[-1]["spent_seconds"] == pytest.approx(result.spent_seconds)
    assert [r["best_result"] for r in rows] == [20.0, *[5.0] * 9]
    lucky = made.study(*result.trials, made.trial(10, 1.0, kind="confirm", repeats=1))
    assert tables.progress(lucky)[-1]["best_result"] == 5.0


def test_schedules_are_as_reported_and_else_as_configured() -> None:
    point = {"lr": 0.3, "batch_size": 32}
    trial = made.trial(0, 10.0, config={**point, "momentum": Cosine(0.9, 0.5)}, params=point)
    rows = tables.schedules([trial], 100)
    lrs = [0.1, 0.09, 0.08, 0.07, 0.06, 0.05]
    assert [r["lr"] for r in rows] == pytest.approx(lrs), (
        "reported, whatever the configuration says"
    )
    assert (rows[0]["momentum"], rows[-1]["momentum"]) == (0.9, 0.5)
    assert (rows[-1]["seconds"], rows[-1]["samples"]) == (10.0, 100)


def test_no_two_trials_are_in_a_lane_at_once() -> None:
    with memory() as folder:
        result = simulate(wide(), folder / "s", 30, learning, workers=3)
        rows = time_spent.timeline(result.trials)
    assert {r["lane"] for r in rows} == {1, 2, 3}
    assert len(rows) == 30
    for lane in (1, 2, 3):
        own = sorted((r for r in rows if r["lane"] == lane), key=lambda r: r["start"])
        for before, after in pairwise(own):
            assert before["end"] <= after["start"] + 1e-6


def test_throughput_is_shown_for_each_batch_size() -> None:
    rows = time_spent.throughput([made.trial(0, 10.0)])
    assert [(r["batch_size"], r["samples_per_second"]) for r in rows] == [(32.0, 10.0)]


def test_the_parts_of_the_clock_are_all_there() -> None:
    (row,) = time_spent.clock_parts([made.trial(0, 10.0)])
    assert sum(row[part] for part in time_spent.PARTS) == pytest.approx(1.0 + 10.0 + 0.5)


# --- importance -----------------------------------------------------------------------------------


def test_a_parameter_that_decides_is_found_and_others_may_be_chance() -> None:
    result = made.many(120)
    rows = {r["parameter"]: r for r in importance.importance(result.trials, made.TARGET)}
    assert next(iter(rows)) == "lr"
    assert rows["lr"]["importance"] > 0.5
    assert rows["lr"]["importance"] > rows["lr"]["chance"]
    assert sum(r["importance"] for r in rows.values()) == pytest.approx(1.0)
    assert rows["lr"]["best"] == 12


def test_chance_is_what_it_says() -> None:
    """Parameters that do not matter stand above their mark in about one case out of twenty."""
    above = []
    for seed in range(40):
        rows = importance.importance(made.many(40, seed).trials, made.TARGET, seed)
        above += [r["importance"] > r["chance"] for r in rows if r["parameter"] != "lr"]
    assert len(above) == 120
    assert np.mean(above) < 0.13


def test_importance_agrees_with_optuna() -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    result = made.many(150, seed=3)
    study = optuna.create_study()
    space = {
        "lr": optuna.distributions.FloatDistribution(1e-4, 1, log=True),
        "noise": optuna.distributions.FloatDistribution(0, 1),
        "kind": optuna.distributions.CategoricalDistribution(["a", "b"]),
        "size": optuna.distributions.IntDistribution(16, 256, log=True),
    }
    for trial in result.trials:
        value = made.TARGET.score(trial)
        study.add_trial(
            optuna.trial.create_trial(params=dict(trial.point), distributions=space, value=value)
        )
    theirs = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
    )
    own = importance.importance(result.trials, made.TARGET)
    assert next(iter(theirs)) == own[0]["parameter"] == "lr"
    assert own[0]["importance"] == pytest.approx(theirs["lr"], abs=0.2)


def test_the_shares_of_a_known_function() -> None:
    """Among the best tenth, `half` and `quarter` have one of two and one of four values.

    So Pearson's divergences from all trials are 1, 3 and, for `even`, 0: shares 1/4, 3/4 and 0.
    """
    trials = [
        made.trial(
            i,
            1.0 + i / 100,
            point={"half": "ab"[i // 500], "quarter": "abcd"[i // 250], "even": "ab"[i % 2]},
        )
        for i in range(1000)
    ]
    rows = importance.importance(trials, made.TARGET)
    shares = {row["parameter"]: row["importance"] for row in rows}
    assert shares == pytest.approx({"half": 0.25, "quarter": 0.75, "even": 0.0}, abs=0.01)


def test_when_a_trial_was_stopped_is_never_its_time() -> None:
    result = made.many(60)
    before = importance.importance(result.trials, made.TARGET)
    moved = [
        made.trial(t.number, 0.5, t.state, point=t.point) if t.state is State.CENSORED else t
        for t in result.trials
    ]
    assert importance.importance(moved, made.TARGET) == before


def test_importance_of_ranks_knows_no_scale() -> None:
    result = made.many(60)
    squeezed = [
        made.trial(t.number, t.seconds, t.state, point={**t.point, "lr": np.log(t.point["lr"])})
        for t in result.trials
    ]
    ours = importance.importance(result.trials, made.TARGET)
    assert json.dumps(importance.importance(squeezed, made.TARGET)) == json.dumps(ours)


def test_too_few_trials_have_no_importance() -> None:
    assert importance.importance(made.many(importance.LEAST_TRIALS - 1).trials, made.TARGET) == []
