"""The peers' virtual workers, and each peer that is installed on a small task of the farm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import autotune as at

FOLDER = str(Path(__file__).parents[2] / "benchmarks")
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

import farm  # noqa: E402
import peers  # noqa: E402
import search  # noqa: E402

TASK = farm.Task("digits", "digits", 200, 0.0, 0, (16,), limit=128.0, goal=0.8)
SMALL = search.Problem(
    "digits",
    TASK.space(),
    TASK.target(),
    TASK.simulate,
    farm.MILESTONES,
    best=10.0,
    judge=lambda config: 10.0,
    recorded=False,
)
RATES = at.SearchSpace({"rate": at.Float(0.01, 0.1)})


def line(params: dict[str, Any], _: int) -> peers.Run:
    """Ten milestones of ten seconds; the accuracy rises by `rate` at each."""
    return peers.Run(params, [10.0 * i for i in range(1, 11)], lambda i: params["rate"] * (i + 1))


def in_order(workers: peers.Workers, rates: list[float]) -> Callable[[], peers.Job]:
    return lambda: workers.job(None, {"rate": rates[workers.started % len(rates)]})


def test_workers_find_what_reaches_the_target_at_its_time() -> None:
    workers = peers.Workers(peers.Race(RATES, line, target=0.3, limit=95.0, milestones=10))
    ask = in_order(workers, [0.1, 0.05, *[0.01] * 6])
    answer = workers.drive(ask, lambda job, milestone, accuracy: milestone == 9, spend=99.0)
    assert answer["trials"] == 8  # the ninth begins at 100
    assert [f[:2] for f in answer["found"]] == [(30.0, 30.0), (60.0, 60.0)]
    assert [f[2] for f in answer["found"]] == [{"rate": 0.1}, {"rate": 0.05}]


def test_a_target_met_at_the_limit_does_not_count() -> None:
    workers = peers.Workers(peers.Race(RATES, line, target=0.3, limit=60.0, milestones=10))
    answer = workers.drive(in_order(workers, [0.1, 0.05]), lambda *_: False, spend=61.0)
    assert {seconds for _, seconds, _ in answer["found"]} == {30.0}


def test_a_stopped_job_makes_room_at_once() -> None:
    workers = peers.Workers(peers.Race(RATES, line, target=0.3, limit=95.0, milestones=10))
    ask = in_order(workers, [0.1])
    answer = workers.drive(ask, lambda job, milestone, accuracy: accuracy >= 0.3, spend=65.0)
    assert [f[:2] for f in answer["found"]] == [(30.0, 30.0)] * 8 + [(60.0, 30.0)] * 8
    assert answer["trials"] == 24


def test_a_job_taken_up_again_goes_on_where_it_stood() -> None:
    workers = peers.Workers(peers.Race(RATES, line, target=0.3, limit=95.0, milestones=10))
    waiting: list[peers.Job] = []

    def ask() -> peers.Job:
        return waiting.pop() if waiting else workers.job(None, {"rate": 0.1})

    def told(job: peers.Job, milestone: int, accuracy: float) -> bool:
        waiting.append(job)
        return True

    answer = workers.drive(ask, told, spend=35.0)
    assert answer["trials"] == 8
    assert [f[:2] for f in answer["found"]] == [(30.0, 30.0)] * 8  # each once


@pytest.mark.slow
@pytest.mark.parametrize("method", peers.METHODS)
def test_a_peer_searches_a_task_of_the_farm(method: str) -> None:
    if method not in peers.available():
        pytest.skip(f"{method}: not installed")
    first, again = (peers.study(SMALL, method, 1, 1.2 * TASK.limit) for _ in range(2))
    assert first == again
    assert first["trials"] >= 8
    assert all(0 < seconds < TASK.limit for _, seconds, _ in first["found"])
    assert all(seconds <= now <= 1.2 * TASK.limit for now, seconds, _ in first["found"])


def test_a_peers_draw_is_a_point_of_the_space() -> None:
    random, space = Random(0), SMALL.space
    for _ in range(50):
        drawn = {}
        for name, parameter in space.parameters().items():
            if isinstance(parameter, at.Choice):
                drawn[name] = random.choice(parameter.options)
            else:
                low, high, _log = peers._range(parameter)
                whole = isinstance(parameter, at.Int)
                drawn[name] = random.randint(low, high) if whole else random.uniform(low, high)
        point = peers._point(space, drawn)
        assert space.check(point) == point
        assert ("trust" in point) == (drawn["optimizer"] == "lars")
