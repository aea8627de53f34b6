"""Studies without a value of the target: the best metric within a limit, on a virtual clock."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest

import autotune as at
from autotune.algorithms.ranking.best import best, by_result, confirmed_gain, nearest
from autotune.algorithms.ranking.equal_time import equal_time_ranks
from autotune.algorithms.ranking.repeats import with_mean_times
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.cli import text
from autotune.cli.console import DONE, UNREACHED, USER, Output, finish, not_reached
from autotune.cli.main import main
from autotune.errors import UserError
from autotune.evaluation import summary
from autotune.evaluation.export.optuna_study import export
from autotune.space.search_space import Float, SearchSpace
from autotune.study.display.picture import Picture
from autotune.study.manifest import Manifest
from autotune.study.result import read
from autotune.tracking.projection import Projection
from autotune.tracking.run_content import STUDY, read_study_info
from autotune.trial import Report, State, Target, Trial
from dashboards import tables, write_study

METRIC, SPACE = "val_acc", SearchSpace({"x": Float(0.0, 1.0)})
LIMITED = Target(METRIC, limit=10)
Curve = Callable[[Mapping[str, Any], int], SimCurve]


def peaked(config: Mapping[str, Any], seed: int) -> SimCurve:
    """Best at x = 0.7, after 6 of 12 seconds, with some luck; then it overfits."""
    luck = 0.01 * math.sin(seed)
    top = 0.9 - (config["x"] - 0.7) ** 2 + luck
    values = [top * (1 - 0.5**i) if i <= 6 else top * (1 - 0.5**6) - 0.01 * i for i in range(1, 13)]
    return SimCurve([SimPoint(100 * i, float(i), {METRIC: v}) for i, v in enumerate(values, 1)])


def train(config: dict[str, Any]) -> None:
    """A stand-in for the simulated trainer."""


def study(folder: Path, target: Target, curve: Curve = peaked, **options: Any) -> at.StudyResult:
    experiment = at.Experiment("metric", train, SPACE, target, baseline={"x": 0.1})
    given = {"trials": 12, "sampler": "random", "pruner": "none", **options}
    return at.run(experiment, out=folder, pool=SimPool(curve, workers=2), **given)


def completed(number: int, *values: float, **more: Any) -> Trial:
    """A trial that reported these values, one a second."""
    reports = tuple(Report(i, float(i), {METRIC: v}) for i, v in enumerate(values, 1))
    own = {"state": State.COMPLETED, "reason": "finished", "attempts": 1, "seconds": len(values)}
    return Trial(number, {"x": number}, {"x": 0.5}, reports=reports, **{**own, **more})


# --- the target ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Target("loss"), "mode must be given for 'loss': 'min' if lower is better"),
        (lambda: Target("valPerplexity", limit=5), "mode must be given for 'valPerplexity'"),
        (lambda: Target("val_loss", 0.3, limit=3), "mode must be given for 'val_loss': 'min' if"),
        (lambda: Target("RMSE", 0.3, limit=3), "mode must be given for 'RMSE'"),
        (
            lambda: Target("acc", 60),
            r"60 is the value to reach, and no limit; the time to it is Target\('acc', 60, limit="
            r"...\), the best acc within 60 s is Target\('acc', limit=60\)",
        ),
        (lambda: Target("acc", 0.9), r"needs a limit.* Target\('acc', limit=60\)"),
        (lambda: Target("acc", 0.9, clock="steps"), "needs a limit_steps"),
        (lambda: Target("acc", limit=0), "limit must be more than 0 seconds but got 0"),
        (lambda: Target("acc", limit_steps=0), "limit_steps must be a whole number >= 1 but got 0"),
        (lambda: Target("acc", limit_steps=2.5), "limit_steps must be a whole number >= 1"),
        (lambda: Target("acc", scope="bets", limit=9), "scope 'bets'; did you mean 'best'"),
        (lambda: Target("acc", mode="upp", limit=9), "mode must be 'max' or 'min' but got 'upp'"),
        (lambda: Target("acc", clock="steps", limit=9), "limit is in seconds, but clock='steps'"),
        (lambda: Target("acc", 0.9, limit=9, scope="last"), "is for a target without a value"),
        (lambda: Target("acc", limit=9, confirm=2), "confirm is for a target with a value"),
    ],
)
def test_a_wrong_target_says_what_is_right(make: Callable[[], Target], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_only_what_its_name_says_is_an_error_needs_a_mode() -> None:
    assert [Target(name, limit=1).mode for name in ("acc", "mean_lossless", "bleu")] == ["max"] * 3
    assert Target("acc", 0.5, limit=1).mode == "max"
    assert Target("gained_error", 0.5, limit=1, mode="max").mode == "max"
    assert Target("acc", limit_steps=9).clock == "steps"
    assert Target("acc", limit_steps=9, limit=9).clock == Target("acc").clock == "train"


def test_the_manifest_of_a_target_with_a_value_is_as_it_was() -> None:
    known = {"metric": "acc", "value": 0.9, "limit": 60.0, "mode": "max", "clock": "train"}
    assert json.dumps(Target("acc", 0.9, limit=60.0).to_json()) == json.dumps(
        {**known, "confirm": 1}
    )
    for target in (LIMITED, Target("loss", mode="min", scope="last", limit_steps=5)):
        assert Target(**target.to_json()) == target


def test_a_generator_needs_a_limit() -> None:
    def trainer(config: dict[str, Any]) -> Any:
        yield at.Milestone(1, dict)

    class Called:
        def __call__(self, config: dict[str, Any], scale: float = 1.0) -> Any:
            yield at.Milestone(1, dict)

    class Ends(Called):
        ends_by_itself = True

    for endless in (trainer, partial(trainer), Called(), partial(Called(), scale=2.0)):
        with pytest.raises(ValueError, match=r"has no limit, but its trainer is a generator"):
            at.Experiment("metric", endless, SPACE, Target(METRIC))
    for ending in (train, Ends(), partial(Ends(), scale=2.0)):
        assert at.Experiment("metric", ending, SPACE, Target(METRIC)).target.horizon == math.inf


def test_the_score_is_the_signed_metric_and_the_scope_says_of_which_report() -> None:
    trial = completed(0, 0.5, 0.8, 0.7)
    assert LIMITED.score(trial) == -0.8
    assert LIMITED.order(trial) == (-0.8, 2.0, 0)
    assert replace(LIMITED, scope="last").score(trial) == -0.7
    assert Target(METRIC, mode="min", limit=10).score(trial) == 0.5
    assert Target(METRIC, limit_steps=1).score(trial) == -0.5, "later reports are too late"
    assert Target(METRIC, limit=2).score(trial) == -0.5
    assert LIMITED.score(replace(trial, state=State.CENSORED, reason="bottom")) == -0.8
    assert LIMITED.score(replace(trial, state=State.CENSORED, reason="budget")) is None
    assert LIMITED.score(replace(trial, state=State.FAILED)) is None
    assert LIMITED.score(replace(trial, reports=())) == math.inf


# --- ranks --------------------------------------------------------------------------------------


def test_trials_are_ranked_by_their_metric_and_of_equal_ones_the_earlier_is_first() -> None:
    trials = [completed(0, 0.5, 0.8), completed(1, 0.8, 0.7), completed(2, 0.6, 0.9)]
    stopped = completed(3, 0.95, state=State.CENSORED, reason="bottom")
    assert [t.number for t in by_result([*trials, stopped], LIMITED)] == [2, 1, 0]
    ranks = equal_time_ranks([*trials, stopped], LIMITED)
    assert ranks[3] == 0.0, "it was the best when it was stopped"
    assert ranks[2] < ranks[0]
    assert nearest([*trials, stopped], LIMITED) is stopped


def test_repeats_give_a_mean_and_the_lucky_ones_fall_back() -> None:
    trials = [completed(n, value) for n, value in enumerate((0.90, 0.89, 0.80))]
    again = [
        completed(n, value, repeats=0, kind="race", seed=n) for n, value in ((3, 0.86), (4, 0.85))
    ]
    means = with_mean_times([*trials, *again], LIMITED)
    assert LIMITED.result(means[0]) == pytest.approx(-0.87)
    found = best([*trials, *again], LIMITED)
    assert found is trials[0], "0.89 once is worth 0.86: what was repeated lost 0.03"


def test_confirmed_metrics_have_an_interval_and_a_gain() -> None:
    first = [completed(0, 0.7, kind="baseline"), completed(1, 0.9)]
    runs = [(2, 1, 0.88), (3, 0, 0.70), (4, 1, 0.86), (5, 0, 0.72), (6, 1, 0.87), (7, 0, 0.71)]
    again = [completed(n, value, repeats=of, kind="confirm", seed=n // 2) for n, of, value in runs]
    found = confirmed_gain([*first, *again], LIMITED)
    assert found is not None
    assert (round(found.gain, 6), found.pairs) == (0.16, 3)
    assert found.interval is not None
    assert found.interval[0] < 0.16 < found.interval[1]


# --- whole studies ------------------------------------------------------------------------------


def test_every_view_of_a_study_names_the_same_best(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranking, result, JSON, terminal, report, MLflow and Optuna agree."""
    result = study(fast_path, LIMITED, repeats=3, top=2)
    best_trial = result.best
    assert best_trial is not None
    assert {t.state for t in result.searched} == {State.COMPLETED}
    assert {t.reason for t in result.searched} == {"limit"}
    number, known = best_trial.number, result.confirmation(best_trial)
    assert known is not None
    assert known.number == result.confirmed[0].number
    assert known.mean == min(one.mean for one in result.confirmed)
    value = LIMITED.best(best_trial)
    assert value == pytest.approx(max(r.metrics[METRIC] for r in best_trial.reports))
    assert result.gain is not None
    assert result.gain > 0
    assert result.speedup is result.speedup_of_confirmed is None
    assert f"best {METRIC} within 10 s: trial {number} with {value:.4g}" in str(result)
    assert f"{value:.4g}" in result._repr_html_()

    document = json.loads(json.dumps(summary.document(result, "metric")))
    assert (document["best"]["trial"], document["best"]["result"]) == (number, value)
    mean = document["best"]["confirmed"]["mean_metric"]
    assert mean == pytest.approx(-known.mean)
    assert document["confirmed_gain_vs_baseline"] == result.gain_of_confirmed.gain  # type: ignore[union-attr]
    assert document["counts"]["COMPLETED"] == 12

    assert tables.leaderboard(result)[0]["trial"] == number
    write_study(fast_path, fast_path / "report.html")
    assert "Best val_acc within 10 s" in (fast_path / "report.html").read_text()

    view = Projection(read_study_info(fast_path))
    points = [view.take(line) for line in (fast_path / "journal.jsonl").read_bytes().splitlines()]
    final = {p.key: p.value for p in points[-1][STUDY]}
    assert (final[f"best_{METRIC}"], final[f"confirmed_mean_{METRIC}"]) == (value, mean)
    assert final["trials_completed"] == 12
    assert json.loads(view.best_json())["trial"] == number

    url = f"sqlite:///{fast_path / 'optuna.db'}"
    assert export(result.trials, SPACE, LIMITED, url, "mine") == 12
    exported = optuna.load_study(study_name="mine", storage=url)
    assert exported.best_value == max(LIMITED.best(t) or 0 for t in result.searched)

    for command, says in (
        (["best", str(fast_path)], f"trial {number}: best {METRIC} {value:.4g}"),
        (["status", str(fast_path)], f"best: trial {number}, {value:.4g}"),
        (["compare", str(fast_path)], f"#{number} "),
    ):
        assert main(command) == DONE
        out = capsys.readouterr().out
        assert says in out
        assert f"{mean:.4g}" in out, "the confirmed mean"


def test_studies_with_and_without_a_value_are_not_compared(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study(fast_path / "a", LIMITED)
    study(fast_path / "b", Target(METRIC, 0.5, limit=10))
    study(fast_path / "c", replace(LIMITED, limit=5))
    folders = [str(fast_path / name) for name in "abc"]
    assert main(["compare", *folders[:2]]) == USER
    assert "times and metrics cannot be compared" in capsys.readouterr().err
    assert main(["compare", folders[0], folders[2]]) == USER
    assert "--allow target compares them all the same" in capsys.readouterr().err
    file = fast_path / "made.csv"
    allowed = ["--allow", "target", "--csv", str(file), "--json"]
    assert main(["compare", folders[0], folders[2], *allowed]) == DONE
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["mean"] for row in rows] == sorted((r["mean"] for r in rows), reverse=True)
    assert len(file.read_text().splitlines()) == len(rows) + 1
    page = fast_path / "x.html"
    assert main(["compare", folders[0], folders[2], *allowed[:2], "--report", str(page)]) == DONE
    text = page.read_text()
    assert "Mean metrics" in text
    assert all(row["name"] in text for row in rows)
    assert main(["compare", folders[0], "--target", "acc=1"]) == USER
    assert "--target is for times to a value" in capsys.readouterr().err


def test_the_terminal_says_what_the_best_is(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, manifest = study(fast_path, LIMITED, repeats=2, top=1), Manifest.read(fast_path)
    assert finish(result, manifest, Output()) == DONE
    out = capsys.readouterr().out
    best_trial = result.best
    assert best_trial is not None
    shown = f"{LIMITED.best(best_trial):.4g}"
    assert f"metric: best {METRIC} within 10 s" in " ".join(out.split())
    assert f"Best: trial {best_trial.number} with {shown}" in out
    assert "better by" in out
    text.print_best(summary.best(result), sys.stdout)
    assert f"best {METRIC} {shown} when it was tuned" in capsys.readouterr().out
    leading = Picture("metric", LIMITED, 12).leading(result.trials)
    assert leading.startswith(f"best {shown} (trial {best_trial.number})  x=")


def test_a_value_that_nobody_reached_shows_the_nearest(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target(METRIC, 0.99, limit=10)
    result, manifest = study(fast_path, target), Manifest.read(fast_path)
    near = result.nearest
    assert result.best is None
    assert near is not None
    words = f"nearest: trial {near.number} came to {target.best(near):.4g}"
    assert finish(result, manifest, Output()) == UNREACHED
    assert words in capsys.readouterr().out
    state = {
        **summary.summary(result, "metric"),
        "driver_alive": False,
        "trials_planned": 12,
    }
    text.print_status(state, sys.stdout)
    assert words in capsys.readouterr().out
    assert words in not_reached(result)
    assert words in str(result)
    assert words in result._repr_html_()
    write_study(fast_path, fast_path / "report.html")
    assert words in (fast_path / "report.html").read_text()
    assert words in Picture("metric", target, 12).leading(result.trials)


def test_a_function_that_ends_by_itself_needs_no_limit(fast_path: Path) -> None:
    def once(config: Mapping[str, Any], seed: int) -> SimCurve:
        return SimCurve([SimPoint(1, 1 + config["x"], {METRIC: config["x"]})])

    result = study(fast_path, Target(METRIC), once, pruner="auto", trials=30)
    assert {t.state for t in result.trials} == {State.COMPLETED}
    assert {t.reason for t in result.trials} == {"finished"}
    assert result.best is max(result.trials, key=lambda t: t.config["x"])


def test_without_a_metric_within_the_limit_nothing_is_completed(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(config: Mapping[str, Any], seed: int) -> SimCurve:
        return SimCurve([SimPoint(1, 50.0, {METRIC: 0.9})])

    result = study(fast_path, LIMITED, late, trials=3)
    said = f"warning: trial 0 came to its first {METRIC} after 50.00 s, beyond the limit"
    err = capsys.readouterr().err
    assert said in err
    assert err.count("beyond the limit") == 1, "once"
    assert {(t.state, t.reason) for t in result.trials} == {(State.CENSORED, "limit")}
    assert finish(result, Manifest.read(fast_path), Output()) == UNREACHED
    study(fast_path / "value", Target(METRIC, 0.5, limit=10), late, trials=3)
    said = f"warning: trial 0 came to {METRIC} 0.5 after 50.00 s, beyond the limit"
    assert capsys.readouterr().err.count(said) == 1


@pytest.mark.parametrize("clock", ["train", "steps"])
@pytest.mark.parametrize("pruner", ["bottom_at_same_time", "asha", "hyperband", "auto"])
def test_pruners_that_compare_at_equal_time_work(fast_path: Path, pruner: str, clock: str) -> None:
    target = Target(METRIC, limit_steps=1000) if clock == "steps" else LIMITED
    result = study(fast_path, target, trials=40, pruner=pruner)
    states = {t.state for t in result.trials}
    assert states == {State.COMPLETED, State.CENSORED}
    best_trial = result.best
    assert best_trial is not None
    assert abs(best_trial.config["x"] - 0.7) < 0.15
    if clock == "steps":
        assert best_trial.seconds == best_trial.reports[-1].step == 1000
        assert best_trial.hardware.mixed, "steps are the same on any hardware"


@pytest.mark.parametrize(
    ("target", "pruner", "says"),
    [
        (LIMITED, "convergence", "pruner 'convergence' needs a Target with a value; without one"),
        (LIMITED, "forecast(chance=0.1)", "pruner 'forecast' needs a Target with a value"),
        (LIMITED, "slower_than_best", "pruner 'slower_than_best' needs a Target with a value"),
        (Target(METRIC), "asha", "compares trials at shares of the Target's limit"),
    ],
)
def test_pruners_that_need_a_value_say_so(
    fast_path: Path, target: Target, pruner: str, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        study(fast_path, target, pruner=pruner)


SAMPLERS = {"convergence": 40, "tpe": 40, "cmaes": 40, "widening": 40, "policy": 20, "gp": 12}


@pytest.mark.parametrize(("sampler", "trials"), SAMPLERS.items())
def test_samplers_find_the_best_metric(fast_path: Path, sampler: str, trials: int) -> None:
    result = study(fast_path, LIMITED, trials=trials, sampler=sampler, pruner="auto")
    best_trial = result.best
    assert best_trial is not None
    assert abs(best_trial.config["x"] - 0.7) < 0.15


def test_a_loss_is_minimised_and_the_leader_raced(fast_path: Path) -> None:
    def loss(config: Mapping[str, Any], seed: int) -> SimCurve:
        curve = peaked(config, seed)
        points = [replace(p, metrics={"loss": 1 - p.metrics[METRIC]}) for p in curve.points]
        return SimCurve(points)

    target = Target("loss", mode="min", limit=10)
    result = study(fast_path, target, loss, trials=40, racing=0.3)
    races = [t for t in result.trials if t.kind == "race"]
    assert races
    assert result.best is not None
    assert target.best(result.best) < 0.2  # type: ignore[operator]


def test_steps_as_a_clock_rank_by_steps_to_the_value(fast_path: Path) -> None:
    """The seconds of a machine that is never quiet do not matter."""

    def busy(config: Mapping[str, Any], seed: int) -> SimCurve:
        slow = 1 + seed % 5
        points = [SimPoint(100 * i, slow * i, {METRIC: config["x"] * i}) for i in range(1, 50)]
        return SimCurve(points)

    target = Target(METRIC, 5.0, clock="steps", limit_steps=4000)
    result = study(fast_path, target, busy, trials=20, pruner="auto")
    best_trial = result.best
    assert best_trial is not None
    assert best_trial.config["x"] == pytest.approx(
        max(t.config["x"] for t in result.trials), abs=0.1
    )
    assert best_trial.seconds == best_trial.reports[-1].step
    assert f"{best_trial.seconds:,.0f} steps" in str(result)
    view = Projection(read_study_info(fast_path))
    points = [view.take(line) for line in (fast_path / "journal.jsonl").read_bytes().splitlines()]
    final = {p.key: p.value for p in points[-1][STUDY]}
    assert final["best_time_to_target_steps"] == 100 * math.ceil(5.0 / best_trial.config["x"])


def test_the_state_of_the_best_report_is_kept(fast_path: Path) -> None:
    """Checkpoints are asked for at each new best of a trial that is among the best."""
    result = study(fast_path, LIMITED)
    best_trial = result.best
    assert best_trial is not None
    saved, counted = LIMITED.checkpoint(best_trial), LIMITED.counted(best_trial)
    assert saved is not None
    assert counted is not None
    assert saved.step == counted.step == 600
    again = read(fast_path, LIMITED).best
    assert again is not None
    assert LIMITED.checkpoint(again) == saved, "as the journal has it"
    last = replace(LIMITED, scope="last")
    other = study(fast_path / "last", last).best
    assert other is not None
    assert last.checkpoint(other).step == 900  # type: ignore[union-attr]


def test_a_study_goes_on_as_if_nothing_had_happened(fast_path: Path) -> None:
    whole = study(fast_path / "a", LIMITED)
    study(fast_path / "b", LIMITED, trials=5)
    parts = study(fast_path / "b", LIMITED)
    assert [t.config for t in parts.searched] == [t.config for t in whole.searched]
    assert Manifest.read(fast_path / "b").target == LIMITED
