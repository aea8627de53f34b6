"""What `benchmarks/search.py` measures of a study and tells of many."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

import autotune as at
from autotune.backends.simulator import Curve, Point

FOLDER = str(Path(__file__).parents[2] / "benchmarks")
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

import _told  # noqa: E402
import peers  # noqa: E402
import search  # noqa: E402

EPOCHS, SECONDS, TARGET = 9, 10.0, 0.9


def _time(config: at.trial.Config) -> float:
    """The accuracy rises by `rate` an epoch."""
    epochs = math.ceil(TARGET / config["rate"] - 1e-9)
    return SECONDS * epochs if epochs < EPOCHS else math.inf


def _curve(config: at.trial.Config, _: int) -> Curve:
    epochs = range(1, EPOCHS + 1)
    return Curve([Point(i, SECONDS * i, {search.METRIC: i * config["rate"]}) for i in epochs])


LINES = search.Problem(
    "lines",
    at.SearchSpace({"rate": at.Float(0.01, 0.45)}),
    at.Target(search.METRIC, TARGET, limit=SECONDS * EPOCHS),
    lambda: _curve,
    EPOCHS,
    best=20.0,
    judge=_time,
    recorded=True,
    length=lambda config: SECONDS * EPOCHS,
)


def study(task: str, seed: int, **measured: Any) -> dict[str, Any]:
    zeros = {"regret": 1.0, "regret_quarter": 1.0, "until_25": 1.0, "until_10": 1.0}
    zeros |= {"trials": 1, "lost": 0, "winners": 0, "saved": 0.0, "cpu": 0.0}
    return {"task": task, "seed": seed, **zeros, **measured}


def test_what_stopping_saves_and_loses() -> None:
    good, poor = {"rate": 0.45}, {"rate": 0.1}  # 20 s, and 90 s: as long as the limit
    done = [(good, 20.0, 20.0, False), (good, 10.0, 20.0, True), (poor, 30.0, 90.0, True)]
    told = search.stopping(LINES, done)
    assert told == {"saved": pytest.approx(1 - 60 / 130), "winners": 2, "lost": 1}
    assert search.stopping(LINES, []) == {"saved": None, "winners": None, "lost": None}


@pytest.mark.parametrize("pruner", ["none", "slower_than_best", "asha"])
def test_our_studies_account_for_what_they_trained(pruner: str) -> None:
    answer = search.our_study(LINES, "random", pruner, 0, 400.0)
    told = search.measures(LINES, answer, 400.0)
    assert len(answer["done"]) <= answer["trials"]
    assert sum(run[1] for run in answer["done"]) <= 400.0 * search.WORKERS
    assert all(spent <= whole for _, spent, whole, _ in answer["done"])
    if pruner == "none":
        assert told["saved"] == 0.0
    else:
        assert told["saved"] > 0.1
    if pruner != "asha":  # who has spent the best known time loses nothing by being stopped
        assert told["lost"] == 0


@pytest.mark.parametrize("pruner", ["none", "hyperband", "asha"])
def test_a_peers_studies_account_for_what_they_trained(pruner: str) -> None:
    answer = search.peer_study(LINES, "random", pruner, 0, 400.0)
    told = search.measures(LINES, answer, 400.0)
    assert answer["trials"] - search.WORKERS <= len(answer["done"]) <= answer["trials"]
    assert all(whole == SECONDS * EPOCHS for _, _, whole, _ in answer["done"])
    assert (told["saved"] > 0.2) == (pruner != "none")
    for config, spent, _, stopped in answer["done"]:
        assert stopped == (spent < min(_time(config), SECONDS * EPOCHS))


def test_a_job_of_a_package_says_where_it_was_stopped() -> None:
    run = peers.Run({"rate": 0.1}, [10.0, 20.0, 30.0], lambda i: 0.1 * i)
    assert peers.Job(None, run, next=2).done() == ({"rate": 0.1}, 20.0, 30.0, True)
    assert peers.Job(None, run, next=2, reached=10.0).done()[3] is False
    assert peers.Job(None, run, next=3).done()[3] is False


def test_ratios_are_paired_by_task_and_seed() -> None:
    runs = {
        "peer": [study("a", 0, until_25=8.0), study("b", 0, until_25=2.0)],
        "ours": [study("b", 0, until_25=1.0), study("a", 0, until_25=4.0), study("a", 1)],
    }
    (line,) = _told.ratios(runs, "peer", lambda r: r["until_25"])
    assert "2.00 (2.00-2.00)" in line  # 8 / 4 and 2 / 1, whatever the order
    assert line.endswith("n=2")  # the third has no partner


def test_an_interval_over_tasks_is_wider_where_tasks_differ() -> None:
    tasks = [task for task in "abcd" for _ in range(5)]
    values = [{"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0}[task] for task in tasks]

    def width(text: str) -> float:
        low, high = text.partition("(")[2].rstrip(")").split("-")
        return float(high) / float(low)

    seeds, wider = _told.interval(values), _told.by_task(values, tasks)
    assert seeds.split()[0] == wider.split()[0] == "2.83"
    assert width(wider) > 1.5 * width(seeds)


def written(folder: Path, name: str, **changed: Any) -> Path:
    about = {"problem": "lcbench", "spend": 2.0, "runs": {"ours": [study("a", 0)]}, **changed}
    (folder / name).write_text(json.dumps(about))
    return folder / name


def test_files_are_told_together(tmp_path: Path) -> None:
    first = written(tmp_path, "first")
    more = {"ours": [study("a", 1, regret=4.0)], "peer": [study("a", 0)]}
    runs, spend = _told.merged([first, written(tmp_path, "second", runs=more)])
    assert spend == 2.0
    assert [r["seed"] for r in runs["ours"]] == [0, 1]
    assert "2.00 (1.00-4.00)" in _told.table(runs, spend)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, "is there twice"),
        ({"spend": 3.0}, "different problems or spends"),
        ({"problem": "farm"}, "different problems or spends"),
    ],
)
def test_files_that_do_not_go_together_are_refused(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        _told.merged([written(tmp_path, "first"), written(tmp_path, "second", **changed)])


def test_a_missed_target_counts_as_the_whole_spend() -> None:
    line = _told.row("ours", [study("a", 0, until_25=None), study("a", 1, until_25=1.0)], 4.0)
    assert "2.00 (1.00-4.00)" in line
    assert "50%" in line


@pytest.mark.parametrize("problem", [search.trained()[0]], ids=lambda p: p.name)
def test_the_effective_learning_rate_is_searched_in_place_of_the_other(
    problem: search.Problem,
) -> None:
    assert problem.effective is not None
    for space, share in ((problem.space, 0.0), (problem.effective, 1.0)):
        for point in space.sample(20, seed=1):
            schedule = space.config(point)["lr"]
            peak = max(schedule(i / 400) for i in range(401))
            expected = point["lr.peak"] * (1 - share * point["momentum"])
            assert peak == pytest.approx(expected, rel=0.02)


def test_the_rule_of_ray_tune_is_ray_tune_s() -> None:
    """Against Ray's own bracket, which measures a trial by those that came before it."""
    from ray.tune.schedulers.async_hyperband import _Bracket
    from ray.tune.schedulers.trial_scheduler import TrialScheduler

    class Named:
        def __init__(self, number: int) -> None:
            self.trial_id = str(number)

    random, ours, theirs = Random(0), search.Asha(), _Bracket(1, 52, 3, 0)
    going: dict[int, float] = {number: random.random() for number in range(40)}
    stopped = 0
    for epoch in range(1, 28):
        for number, pace in sorted(going.items(), key=lambda _: random.random()):
            accuracy = pace * epoch + random.random()
            wanted = theirs.on_result(Named(number), epoch, accuracy) == TrialScheduler.STOP
            assert ours.stops(number, epoch, accuracy) is wanted
            if wanted:
                del going[number]
                stopped += 1
    assert 20 < stopped < 40
