"""The sampler `policy`: blind to order and names, repeatable, and never without a point."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from recorded_tasks import tasks
from sims import EVERYTHING, lines, simulate, wide
from sims import learning as learn

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.samplers.experienced import ExperiencedSampler
from autotune.algorithms.samplers.trained_policy import network
from autotune.algorithms.samplers.trained_policy.expected import Expected
from autotune.algorithms.samplers.trained_policy.inputs import (
    ABSENT,
    Seen,
    differences,
    inputs,
    places,
    positions,
)
from autotune.algorithms.samplers.trained_policy.sampler import OWN_FROM, TrainedPolicySampler
from autotune.errors import UserError
from autotune.space.parameters import Float, Int
from autotune.space.search_space import Choice, SearchSpace
from autotune.trial import Params, Report, State, Target, Trial

TARGET = Target("acc", 0.9, limit=10.0)
LIKE = SearchSpace({"learning_rate": Float(1e-3, 1.0, log=True), "max_units": Int(16, 256)})
WEIGHTS = {
    name: np.random.default_rng(i).normal(0, 0.5, shape)
    for i, (name, shape) in enumerate(network.SHAPES.items())
}


class Own:
    """The study's own search."""

    def ask(self, number: int, trials: object) -> Params:
        return {"own": number}


def sampler(
    space: SearchSpace, seed: int = 0, known: bool = False, target: Target = TARGET
) -> TrainedPolicySampler:
    canonical = CanonicalSpace(space)
    other = ExperiencedSampler(space, target, seed, canonical, tasks(), Own()) if known else None
    return TrainedPolicySampler(space, target, seed, Own(), other, 20, WEIGHTS)


def ended(number: int, params: Params, seconds: float, state: State = State.CENSORED) -> Trial:
    ends = min(seconds, 10.0)
    reached = state is State.CENSORED and seconds < 10
    reports = tuple(Report(i, ends * i / 4, {"acc": 0.2 * i / seconds}) for i in range(1, 5))
    return Trial(
        *(number, {}, params),
        state=State.REACHED if reached else state,
        reason="x",
        seconds=ends,
        reports=() if state is State.FAILED else reports,
        ended_at=number + 1.0,
    )


def some_trials(space: SearchSpace, count: int = 9) -> list[Trial]:
    random = Random(1)
    states = [State.CENSORED] * 7 + [State.FAILED, State.RUNNING]
    points = space.sample(count, 3)
    return [ended(i, point, random.uniform(2, 20), states[i % 9]) for i, point in enumerate(points)]


# --- order and names ------------------------------------------------------------------------------


def a_decision() -> tuple[Seen, np.ndarray, np.ndarray, Expected]:
    rng = np.random.default_rng(0)
    count, trials, size = 30, 8, 5
    choices = np.array([False, False, True, False, True])
    draw = [rng.random((n, size)) for n in (count, trials)]
    for rows in draw:
        rows[:, choices] = rng.integers(0, 3, (len(rows), 2))
        rows[:2, 3] = ABSENT
    running = np.arange(trials) >= 6
    seen = Seen(
        *(draw[1], rng.normal(size=trials), np.where(running, 0, rng.normal(size=trials))),
        *((rng.random(trials) < 0.5) & ~running, running, 7.0),
    )
    about = [rng.random(n) for n in (count, count, count, trials)]
    return seen, draw[0], choices, Expected(*about, 0.3, 12.0)


def scores(seen: Seen, here: np.ndarray, choices: np.ndarray, expected: Expected) -> np.ndarray:
    return network.scores(WEIGHTS, inputs(seen, here, choices, expected))


def test_the_order_of_trials_parameters_and_candidates_does_not_matter() -> None:
    seen, here, choices, expected = a_decision()
    before = scores(seen, here, choices, expected)
    assert np.ptp(before) > 0.1
    for seed in range(5):
        rng = np.random.default_rng(seed)
        order, columns = rng.permutation(len(seen.logs)), rng.permutation(len(choices))
        rows = rng.permutation(len(here))
        other = replace(
            seen,
            positions=seen.positions[order][:, columns],
            **{n: getattr(seen, n)[order] for n in ("logs", "places", "reached", "running")},
        )
        also = replace(expected.of(list(rows)), of_trials=expected.of_trials[order])
        after = scores(other, here[rows][:, columns], choices[columns], also)
        assert after == pytest.approx(before[rows], abs=1e-9)


def test_names_and_the_order_of_entries_do_not_matter() -> None:
    """Without a known task nothing but positions is seen."""
    entries = dict(EVERYTHING.entries)
    renamed = {"momentum": "b", "units": "a"}
    space = SearchSpace({renamed.get(n, n): entries[n] for n in reversed(entries) if n != "trust"})
    plain = SearchSpace({n: e for n, e in entries.items() if n != "trust"})
    found = []
    for one, names in ((plain, {}), (space, renamed)):
        points = [{names.get(k, k): v for k, v in p.items()} for p in plain.sample(20, 5)]
        here, choices = positions(one.parameters(), points)
        trials = some_trials(plain)
        moved = [replace(t, params=points[i]) for i, t in enumerate(trials)]
        seen = sampler(one)._seen(moved[:8], moved[8:])
        zeros = np.zeros(20)
        found.append(scores(seen, here, choices, Expected(zeros, zeros, zeros, np.zeros(9), 1, 1)))
    assert found[0] == pytest.approx(found[1], abs=1e-9)


def test_differences_of_choices_and_of_absent_parameters_are_whole() -> None:
    one = np.array([[0.2, 1.0, ABSENT]])
    other = np.array([[0.5, 2.0, ABSENT], [0.2, 1.0, 0.4]])
    apart = differences(one, other, np.array([False, True, False]))
    assert apart[0].tolist() == [[pytest.approx(0.3), 1.0, 0.0], [0.0, 0.0, 1.0]]


def test_places_compare_at_equal_times() -> None:
    """Trials that reached come first by their times; a leader that was stopped is ahead."""
    nan = np.nan
    curves = np.full((4, 12), nan)
    curves[0, :6] = 0.5  # led until it was stopped
    curves[1, :] = 0.4
    curves[2, :8], curves[3, :5] = 0.6, 0.3
    logs = np.log([0.1, 1.0, 0.4, 0.2])
    found = places(logs, np.array([False, False, True, True]), curves)
    assert np.argsort(found).tolist() == [3, 2, 0, 1]


# --- the sampler's contract -----------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("space", [EVERYTHING, pytest.param(LIKE, marks=pytest.mark.slow)])
def test_points_are_valid_and_a_function_of_trials_seed_and_number(
    space: SearchSpace, known: bool
) -> None:
    trials: list[Trial] = []
    one = sampler(space, 1, known)
    for number in range(6):
        point = one.ask(number, trials)
        assert point is not None
        assert space.check(point) == point
        assert point == sampler(space, 1, known).ask(number, trials)
        trials.append(ended(number, point, 2.0 + number * 3))
    assert one.ask(9, trials) == sampler(space, 1, known).ask(9, list(reversed(trials)))
    assert len({repr(t.params) for t in trials}) == 6
    others = [sampler(space, seed, known).ask(0, []) for seed in range(2, 8)]
    assert any(other != trials[0].params for other in others)


def test_trials_that_failed_and_run_and_have_no_reports_are_no_obstacle() -> None:
    for target in (TARGET, Target("acc", limit=10.0)):
        one = sampler(LIKE, known=True, target=target)
        trials = some_trials(LIKE)
        point = one.ask(20, trials)
        assert point is not None
        seen = one._seen(trials[:8], trials[8:])
        assert seen.places[7] == seen.places[:8].max()  # the one that failed
        assert np.isfinite(one.scored(trials, trials[:8], Random(0))[1]).all()


def test_a_space_of_few_points_and_of_none() -> None:
    few = SearchSpace({"optimizer": Choice(["sgd", "lars"])})
    trials = [ended(i, p, 5.0) for i, p in enumerate([{"optimizer": "sgd"}])]
    assert sampler(few).ask(1, trials) == {"optimizer": "lars"}
    trials.append(ended(1, {"optimizer": "lars"}, 5.0))
    assert sampler(few).ask(2, trials) in ({"optimizer": "sgd"}, {"optimizer": "lars"})
    assert sampler(SearchSpace({})).ask(3, []) == {"own": 3}


def test_later_trials_come_from_the_studys_own_search() -> None:
    trials = [ended(i, p, 5.0) for i, p in enumerate(LIKE.sample(OWN_FROM, 1))]
    assert sampler(LIKE).ask(OWN_FROM, trials) == {"own": OWN_FROM}
    assert sampler(LIKE).ask(OWN_FROM, trials[:-1]) != {"own": OWN_FROM}


# --- studies --------------------------------------------------------------------------------------


def test_a_resumed_study_is_the_uninterrupted_one_whatever_the_packages_weights(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(wide(), fast_path / "whole", 14, learn, sampler="policy", seed=5)
    simulate(wide(), fast_path / "parts", 6, learn, sampler="policy", seed=5)
    monkeypatch.setattr(network, "shipped_bytes", lambda: b"of a later version")
    simulate(wide(), fast_path / "parts", 14, learn, sampler="auto", seed=5)
    whole, parts = (
        [row.get("params") for row in lines(fast_path / name) if row["event"] == "suggested"]
        for name in ("whole", "parts")
    )
    assert whole == parts
    manifest = json.loads((fast_path / "parts" / "experiment.json").read_text())
    assert manifest["sampler"] == "policy"


def test_own_weights_are_kept_with_the_study(fast_path: Path) -> None:
    file = fast_path / "mine.npz"
    network.write(file, WEIGHTS)
    for folder in ("own", "shipped"):
        name = f"policy:{file}" if folder == "own" else "policy"
        simulate(wide(), fast_path / folder, 5, learn, sampler=name, seed=5)
    file.unlink()
    simulate(wide(), fast_path / "own", 7, learn, sampler=f"policy:{file}", seed=5)
    own, shipped = (
        [row["params"] for row in lines(fast_path / name) if row["event"] == "suggested"]
        for name in ("own", "shipped")
    )
    assert len(own) == 7
    assert own[:5] != shipped
    with pytest.raises(UserError, match=r"policy weights .*mine\.npz: No such file"):
        simulate(wide(), fast_path / "new", 5, learn, sampler=f"policy:{file}")


def test_an_older_study_with_policy_goes_on_with_what_it_had(fast_path: Path) -> None:
    """Its manifest says `policy`, and nothing of weights."""
    for folder in ("whole", "older"):
        count = 24 if folder == "whole" else 10
        simulate(wide(), fast_path / folder, count, learn, sampler="policy:elite", seed=5)
    file = fast_path / "older" / "experiment.json"
    file.write_text(file.read_text().replace("policy:elite", "policy"))
    assert json.loads(file.read_text())["sampler"] == "policy"
    simulate(wide(), fast_path / "older", 17, learn, sampler="policy", seed=5)  # its old script
    assert json.loads(file.read_text())["sampler"] == "policy:elite"
    simulate(wide(), fast_path / "older", 24, learn, sampler="auto", seed=5)
    whole, older = (
        [row["params"] for row in lines(fast_path / name) if row["event"] == "suggested"]
        for name in ("whole", "older")
    )
    assert whole == older


# --- the file of the weights ----------------------------------------------------------------------


def test_the_packages_weights_are_small_and_read() -> None:
    assert len(network.shipped_bytes()) < 100_000
    assert network.shipped().keys() == {**network.SHAPES, **network.STOP_SHAPES}.keys()


def test_weights_are_written_and_read(tmp_path: Path) -> None:
    network.write(tmp_path / "a.npz", WEIGHTS)
    found = network.read(tmp_path / "a.npz")
    assert all(found[n] == pytest.approx(WEIGHTS[n], rel=1e-6) for n in network.SHAPES)
    with pytest.raises(UserError, match="cannot write"):
        network.write(tmp_path / "nowhere" / "a.npz", WEIGHTS)


def packed(**changed: object) -> bytes:
    buffer = io.BytesIO()
    arrays = {**WEIGHTS, "version": np.array(network.VERSION), **changed}
    np.savez(buffer, **{name: np.asarray(a) for name, a in arrays.items()})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "damaged"),
        (b"PK no zip", "damaged"),
        (packed()[:-300], "damaged"),
        (packed(pair_1=np.array([None, {}], dtype=object)), "damaged"),
        (packed(version=np.array(99)), "version 99, but this autotune reads version 1"),
        (packed(version=np.array("x")), "version x"),
        (packed(score=np.zeros((3, 1))), r"score is not \(33, 1\) finite numbers"),
        (packed(gain=np.array([[np.nan]])), "gain is not"),
        (packed(stop_1=np.zeros((14, 24))), r"stop_2 is not \(25, 24\) finite numbers"),
        (packed(score=np.array([["x"]] * 33)), "score is not"),
        (b"x" * 1_000_001, "more than a policy has"),
    ],
)
def test_weights_that_cannot_be_used_are_one_line(data: bytes, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        network.parsed(data, "mine.npz")
    assert "mine.npz" in str(caught.value)
    assert "\n" not in str(caught.value)
