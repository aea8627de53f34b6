"""The arithmetic of `ray_tune.py`, the training that it drives by hand, and what its file keeps."""

from __future__ import annotations

import doctest
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune import Float, SearchSpace, Target
from autotune.trial import Milestone

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.append(str(BENCHMARKS))

import _end_to_end  # noqa: E402
import ray_tune  # noqa: E402


def pair(number: int, **seconds: float | None) -> dict[str, Any]:
    """A pair with one confirmation each; None is a miss. The limit is 30 s."""
    searches = {
        name: {"tuned_seconds": 1.0, "trials": 3, "reached": 2, "repeats": 0, "point": {}}
        for name in seconds
        if name != "baseline"
    }
    runs = {
        name: [{"seconds": 31.0 if took is None else took, "reached": took is not None}]
        for name, took in seconds.items()
    }
    return {"pair": number, "searches": searches, "runs": runs, "limit": 30.0}


def test_the_examples_are_right() -> None:
    assert doctest.testmod(ray_tune).failed == 0


def test_a_miss_and_a_search_without_a_winner_count_as_the_limit() -> None:
    pairs = [pair(0, autotune=3.0, tune=None), pair(1, autotune=5.0)]
    assert ray_tune.confirmed_of(pairs, "tune") == [30.0, 30.0]
    assert ray_tune.confirmed_of(pairs, "autotune") == [3.0, 5.0]


def test_the_ratio_is_paired_and_its_interval_is_over_pairs() -> None:
    even = ray_tune.ratio([2.0, 20.0, 8.0], [1.0, 10.0, 4.0])
    assert (even.mean, even.low, even.high) == pytest.approx((2.0, 2.0, 2.0))
    uneven = ray_tune.ratio([4.0, 1.0, 4.0, 1.0], [1.0] * 4)
    assert uneven.mean == pytest.approx(2.0)
    assert (uneven.low, uneven.high) == pytest.approx((1.0, 4.0))
    assert ray_tune.ratio([4.0, 1.0, 4.0, 1.0], [1.0] * 4) == uneven


@pytest.mark.parametrize(
    ("tune", "met"),
    [
        ((9.0, 9.0, 9.0), True),
        ((6.0, 6.0, 6.0), False),  # 1.2: below the aim
        ((60.0, 1.0, 20.0), False),  # 2.1, but the interval reaches below 1
    ],
)
def test_the_aim_needs_the_ratio_and_an_interval_above_1(
    tune: tuple[float, ...], met: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [pair(i, autotune=5.0, tune=took, baseline=10.0) for i, took in enumerate(tune)]
    assert ray_tune.verdict(pairs, 1.5) is met
    said = capsys.readouterr().out
    assert f"at least 1.5, with an interval above 1: {'met' if met else 'missed'}" in said
    assert "baseline / autotune  2.00 (95 % 2.00 to 2.00, 3 pairs)" in said


def test_without_ray_tune_the_rest_is_measured_and_the_aim_not_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_tune, "missing", lambda *_: "pandas not installed")
    monkeypatch.setattr(ray_tune, "introduce", lambda: {"cpu": "a"})

    def run_pair(number: int, _: object, tools: tuple[str, ...]) -> dict[str, Any]:
        return pair(number, **dict.fromkeys(tools, 5.0), baseline=10.0)

    monkeypatch.setattr(ray_tune, "run_pair", run_pair)
    monkeypatch.setattr(sys, "argv", ["ray_tune.py", "--pairs", "1"])
    assert ray_tune.main() == 0
    said = capsys.readouterr().out
    assert "Ray Tune: not run, pandas not installed" in said
    assert "aim: not judged" in said


def test_ray_tunes_winner_is_the_fastest_to_the_target_else_the_nearest() -> None:
    rows = [
        {"reached": False, "training": 1.0, "best": 0.97},
        {"reached": True, "training": 5.0, "best": 0.99},
        {"reached": True, "training": 4.0, "best": 0.985},
    ]
    assert _end_to_end.fastest(rows, "max") == 2
    missed = [{**row, "reached": False} for row in rows]
    assert _end_to_end.fastest(missed, "max") == 1
    assert _end_to_end.fastest(missed, "min") == 0
    assert _end_to_end.fastest([], "max") is None


def learner(
    limit: float = 1e9, values: tuple[float, ...] = (0.2, 0.9, 0.4, 0.9, 0.95)
) -> _end_to_end.Training:
    def train(config: dict[str, Any]) -> Iterator[Milestone]:
        yield Milestone(0, dict)
        for step, value in enumerate(values, 1):
            yield Milestone(step, lambda value=value: {"score": value + config["shift"]})

    space = SearchSpace({"shift": Float(0.0, 1.0)})
    target = Target("score", 0.9, limit=limit, confirm=2)
    experiment = autotune.Experiment("learner", train, space, target)
    return _end_to_end.Training(experiment, {"shift": 0.0}, seed=1)


def test_a_training_by_hand_ends_as_a_trial_does() -> None:
    training = learner()
    while not training.over:
        training.advance()
    assert training.reached  # two evaluations in a row, as the target asks
    assert training.values == [0.2, 0.9, 0.4, 0.9, 0.95]
    assert training.best() == 0.95
    late = learner(limit=1e-9)
    late.advance()
    assert late.over
    assert not late.reached
    short = learner(values=(0.1,))
    while not short.over:
        short.advance()
    assert not short.reached


def options(file: Path, *more: str) -> Any:
    return ray_tune.parsed(["--json", str(file), *more])


def test_a_stopped_measurement_keeps_its_pairs_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pairs.json"
    ran: list[int] = []
    monkeypatch.setattr(ray_tune, "introduce", lambda: {"cpu": "a"})

    def run_pair(number: int, *_: object) -> dict[str, Any]:
        if ran == [0, 1]:
            raise ray_tune.SideError("stopped")
        ran.append(number)
        return pair(number, autotune=5.0, tune=15.0, baseline=10.0)

    monkeypatch.setattr(ray_tune, "run_pair", run_pair)
    monkeypatch.setattr(sys, "argv", ["ray_tune.py", "--pairs", "3", "--json", str(file)])
    assert ray_tune.main() == 2
    assert [one["pair"] for one in json.loads(file.read_text())["pairs"]] == [0, 1]

    with pytest.raises(ValueError, match=r"has pairs 0 to 1: --first-pair 2 goes on"):
        ray_tune.earlier(options(file, "--pairs", "3"))
    with pytest.raises(ValueError, match=r"measured with seconds 200.0, not 60.0"):
        ray_tune.earlier(options(file, "--first-pair", "2", "--seconds", "60"))

    ran.clear()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--first-pair", "2"])
    assert ray_tune.main() == 0
    assert ran == [2]
    assert [one["pair"] for one in json.loads(file.read_text())["pairs"]] == [0, 1, 2]


@pytest.mark.parametrize("text", ["[]", "{", '{"pairs": [{}], "settings": {}}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="not a file of this script"):
        ray_tune.earlier(options(file))
    assert file.read_text() == text


def test_pairs_alternate_and_share_fresh_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def measure(_: str, side: str, task: dict[str, Any], *__: float) -> dict[str, Any]:
        asked.append((side, task))
        return {"point": {"lr": 1.0} if side == "autotune" else None}

    monkeypatch.setattr(ray_tune, "measure", measure)
    for number in range(2):
        ray_tune.run_pair(number, options(Path("unused")), ray_tune.TOOLS)
    sides = [side for side, _ in asked]
    assert sides == ["autotune", "tune", "confirm", "tune", "autotune", "confirm"]
    assert asked[2][1]["points"] == {"autotune": {"lr": 1.0}}  # Ray Tune had no winner
    assert len({_end_to_end.fresh_seed(p, r) for p in range(10) for r in range(9)}) == 90
