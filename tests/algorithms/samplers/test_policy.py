"""The policy sampler: valid, repeatable, better than chance, and a help to the next study."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sims import EVERYTHING, METRIC, WIDE, lines, simulate, toy_train, wide
from sims import learning as learn

import autotune as at
from autotune.algorithms.samplers.distribution import (
    FLOOR,
    LEAST_SPREAD,
    Policy,
    document,
    draw_of_point,
    from_document,
    natural_gradient_step,
    softmax,
    transferred,
    uniform,
)
from autotune.algorithms.samplers.elite import sample_point
from autotune.algorithms.samplers.elite_policy import PolicySampler
from autotune.backends.simulator import SimCurve, SimPoint
from autotune.cli import main
from autotune.errors import UserError
from autotune.space.encoding import effective_rate, real_at, score_of, unit_at, unit_of, value_at
from autotune.space.parameters import Float, Int
from autotune.space.search_space import Choice, ScheduleSpace, SearchSpace
from autotune.storage import manifest
from autotune.study.manifest import Manifest
from autotune.study.space_json import describe
from autotune.trial import Report, State, Target, Trial

TARGET = Target("acc", 0.9, limit=10.0)
BOWL = SearchSpace({f"x{i}": Float(0, 1) for i in range(6)})


def ended(number: int, params: dict, seconds: float) -> Trial:
    """A trial that was asked for while the two before it were running."""
    state = State.REACHED if seconds < 10 else State.CENSORED
    spent = min(seconds, 10.0)
    reports = (Report(1, spent, {"acc": 0.9 * min(10 / seconds, 1)}),)
    times = {"waiting_since": float(number), "ended_at": number + 2.5}
    return Trial(
        number, {}, params, state=state, reason="x", seconds=spent, reports=reports, **times
    )


def run(
    sampler: PolicySampler, space: SearchSpace, seconds: Callable[[dict], float], count: int
) -> list[Trial]:
    """Three slots: a trial has ended when the third one after it is asked for."""
    trials: list[Trial] = []
    for number in range(count):
        running = [replace(t, state=State.RUNNING, reason="") for t in trials[-2:]]
        point = sampler.ask(number, [*trials[:-2], *running])
        assert space.check(point) == point
        trials.append(ended(number, dict(point), seconds(point)))
    return trials


def rate_like(point: dict) -> float:
    return 1 + 20 * abs(math.log10(point.get("lr.peak", 1)) + 1)


def bowl(*centre: float) -> Callable[[dict], float]:
    return lambda p: 1 + 12 * sum((x - c) ** 2 for x, c in zip(p.values(), centre, strict=True))


THERE = bowl(*(0.3 + 0.1 * i for i in range(6)))


# --- the sampler's contract -----------------------------------------------------------------------


def test_points_are_valid_in_any_space_and_repeatable() -> None:
    found, again = (
        run(PolicySampler(EVERYTHING, TARGET, 1), EVERYTHING, rate_like, 40) for _ in "ab"
    )
    assert [t.params for t in found] == [t.params for t in again]
    assert len({str(t.params) for t in found}) == 40
    other = PolicySampler(EVERYTHING, TARGET, 2)
    assert other.ask(0, []) != found[0].params


def test_a_resumed_sampler_proposes_what_the_old_one_would_have() -> None:
    trials = run(PolicySampler(WIDE, TARGET, 2), WIDE, rate_like, 40)
    old, fresh = (PolicySampler(WIDE, TARGET, 2) for _ in "ab")
    for count in (20, 38, 31):  # also back: the answer is a function of the trials alone
        old.ask(count, trials[:count])
    assert old.ask(40, trials) == fresh.ask(40, trials)
    assert fresh.ask(40, trials) != fresh.ask(41, trials)
    assert old.policy(trials) == PolicySampler(WIDE, TARGET, 2).policy(trials)


def test_a_resumed_study_is_the_uninterrupted_one(fast_path: Path) -> None:
    """One worker, so that nothing is running where the first driver leaves."""
    simulate(wide(), fast_path / "whole", 30, learn, sampler="policy:elite", seed=5)
    simulate(wide(), fast_path / "parts", 13, learn, sampler="policy:elite", seed=5)
    simulate(wide(), fast_path / "parts", 30, learn, sampler="policy:elite", seed=5)
    whole, parts = (
        [row for row in lines(fast_path / folder) if row["event"] not in ("opened", "closed")]
        for folder in ("whole", "parts")
    )
    assert [r.get("params") for r in whole] == [r.get("params") for r in parts]
    texts = [(fast_path / folder / "policy.json").read_text() for folder in ("whole", "parts")]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_it_finds_what_random_points_do_not() -> None:
    best, chance = [], []
    for seed in range(3):
        sampler = PolicySampler(BOWL, TARGET, seed)
        trials = run(sampler, BOWL, THERE, 44)
        drawn = [sample_point(sampler.policy(trials), BOWL, Random(n)) for n in range(44)]
        by_chance = BOWL.sample(44, seed)
        best.append(min(t.seconds for t in trials))
        chance.append(min(map(THERE, by_chance)))
        learned, random = (statistics.mean(map(THERE, points)) for points in (drawn, by_chance))
        assert learned - 1 < 0.75 * (random - 1), "of the policy alone, without the critic"
    assert statistics.mean(best) < 1 + 0.75 * (statistics.mean(chance) - 1)
    assert all(a < b for a, b in zip(best, chance, strict=True))


def test_a_whole_study_on_a_virtual_clock(fast_path: Path) -> None:
    result = simulate(wide(), fast_path, 40, learn, workers=4, sampler="policy:elite")
    assert len(result.trials) == 40
    assert result.best.seconds < result.baseline.seconds
    payload = json.loads((fast_path / "policy.json").read_text())
    assert (payload["sampler"], payload["trials"], payload["version"]) == ("policy:elite", 40, 1)
    assert from_document(payload).means.keys() == uniform(WIDE.parameters()).means.keys()


def test_it_starts_near_the_baseline() -> None:
    space = SearchSpace({f"x{i}": Float(0, 1) for i in range(40)})
    known = dict.fromkeys(space.parameters(), 0.7)
    baseline = Trial(0, known, known, kind="baseline")
    points = [PolicySampler(space, TARGET, s).ask(1, [baseline]) for s in range(20)]
    means = [statistics.mean(p.values()) for p in points]
    near = [p for p, mean in zip(points, means, strict=True) if mean > 0.62]
    assert 5 <= len(near) <= 15  # half of the draws are uniform


def test_a_space_without_parameters_has_one_point() -> None:
    sampler = PolicySampler(SearchSpace({"epochs": at.Fixed(3)}), TARGET, 0)
    trials = [ended(n, {}, 2.0) for n in range(30)]
    assert sampler.ask(30, trials) == {}


def test_failed_trials_are_fled_from() -> None:
    """Nothing below one half ever runs: the policy goes above without having seen a time there."""
    trials = []
    for number, point in enumerate(BOWL.sample(24, 1)):
        trial = ended(number, point, 5.0)
        failed = point["x0"] < 0.5
        trials.append(replace(trial, state=State.FAILED, reports=()) if failed else trial)
    assert PolicySampler(BOWL, TARGET, 0).policy(trials).means["x0"] > 0.2
    broken = [replace(t, state=State.FAILED, reports=()) for t in trials]
    assert PolicySampler(BOWL, TARGET, 0).policy(broken).means["x0"] == 0.0


def test_cut_off_trials_teach_nothing() -> None:
    trials = run(PolicySampler(BOWL, TARGET, 0), BOWL, THERE, 12)
    cut = replace(trials[3], state=State.CENSORED, reason="budget")
    sampler = PolicySampler(BOWL, TARGET, 0)
    without = [t for t in trials if t.number != 3]
    assert sampler.policy([*without, cut]) == sampler.policy(without)


def some_policy(seed: int) -> Policy:
    random = Random(seed)
    start = uniform(EVERYTHING.parameters())
    return Policy(
        start.parameters,
        {n: random.uniform(-1, 1) for n in start.means},
        {n: random.uniform(0.2, 0.9) for n in start.means},
        {n: tuple(random.uniform(-2, 2) for _ in own) for n, own in start.logits.items()},
    )


# --- the elite ------------------------------------------------------------------------------------


def test_the_elites_step_is_the_formula() -> None:
    policy = uniform({"x": Float(0, 1), "o": Choice(("a", "b"))})
    weights = np.log(2.5) - np.log([1, 2])
    weights = weights / weights.sum()
    moved = natural_gradient_step(policy, [{"x": 1.0, "o": 1}, {"x": 0.0, "o": 1}])
    assert moved.means["x"] == pytest.approx(0.5 * weights[0])
    assert moved.spreads["x"] == pytest.approx(math.sqrt(0.5 + 0.5 * weights[0]))
    assert softmax(moved.logits["o"]) == pytest.approx([0.25, 0.75])
    masked = natural_gradient_step(policy, [{"o": 0}, {"o": 0}])
    assert masked.means["x"] == 0.0
    assert masked.spreads["x"] == 1.0
    seldom = natural_gradient_step(policy, [{"o": 0}, {"x": 1.0, "o": 0}])
    assert seldom.means["x"] == pytest.approx(0.5 * weights[1])


def test_spreads_and_probabilities_keep_their_floors() -> None:
    policy = uniform({"x": Float(0, 1), "o": Choice(("a", "b", "c"))})
    for _ in range(100):
        policy = natural_gradient_step(policy, [{"x": 2.6, "o": 2}] * 6)
    assert policy.spreads["x"] == LEAST_SPREAD
    assert policy.means["x"] <= 2.6
    assert min(policy.probabilities("o")) >= FLOOR / 3
    assert sum(policy.probabilities("o")) == pytest.approx(1.0)


# --- places in the unit interval ------------------------------------------------------------------

reals = st.floats(-1e6, 1e6, allow_subnormal=False)
numbers = st.one_of(
    st.builds(lambda a, b: Float(min(a, b), max(a, b)), *2 * (reals,)),
    st.builds(lambda a, b: Float(a, a * b, log=True), st.floats(1e-6, 1e3), st.floats(1, 1e6)),
    st.builds(lambda a, b, s: Int(a, a + b, step=s), *2 * (st.integers(0, 99),), st.integers(1, 9)),
    st.builds(lambda a, b: Int(a, a + b, log=True), st.integers(1, 99), st.integers(0, 999)),
    st.builds(lambda a, b: Int(2**a, 2 ** (a + b), power_of_two=True), *2 * (st.integers(0, 9),)),
)


@given(parameter=numbers, unit=st.floats(0, 1))
@example(parameter=Float(1.0, 1.0000000000000002), unit=0.0)
def test_every_place_has_a_value_and_every_value_its_place(
    parameter: Float | Int, unit: float
) -> None:
    value = value_at(parameter, unit)
    assert not parameter.check(value)
    assert 0 <= unit_of(parameter, value) <= 1
    again = value_at(parameter, unit_of(parameter, value))
    assert again == (pytest.approx(value) if isinstance(parameter, Float) else value)
    width = parameter.high - parameter.low
    between = math.ulp(max(abs(parameter.low), abs(parameter.high))) / width if width else 0.0
    assert unit_of(parameter, real_at(parameter, 0.3)) == pytest.approx(
        0.3 if width > 0 or isinstance(parameter, Int) else 0.5,
        abs=1e-3 + between,  # in a range of few floats there is none at each place
    )


@given(seed=st.integers(0, 1000), which=st.sampled_from([EVERYTHING, WIDE]))
@settings(max_examples=60)
def test_what_a_policy_draws_is_in_the_space_and_only_what_exists(
    seed: int, which: SearchSpace
) -> None:
    random = Random(seed)
    start = uniform(which.parameters())
    policy = replace(start, means={n: random.uniform(-2.6, 2.6) for n in start.means})
    point = sample_point(policy, which, random)
    assert which.check(point) == point
    assert ("trust" in point) == (point["optimizer"] == "lars")


def test_even_scores_are_even_values() -> None:
    random = Random(0)
    for parameter, count in ((Int(1, 9, step=3), 3), (Int(16, 256, power_of_two=True), 5)):
        policy = uniform({"n": parameter})
        space = SearchSpace({"n": parameter})
        drawn = [sample_point(policy, space, random)["n"] for _ in range(6000)]
        for value in set(drawn):
            assert drawn.count(value) / 6000 == pytest.approx(1 / count, abs=0.03)
    assert unit_at(score_of(0.3)) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("entries", "there"),
    [
        ({"lr": Float(0.01, 1), "momentum": Float(0, 0.99)}, True),
        ({"learning_rate": Float(0.01, 1), "beta1": Float(0, 1)}, True),
        ({"lr": ScheduleSpace(Float(0.01, 1)), "momentum": Float(0, 0.9)}, True),
        ({"lr": ScheduleSpace(Float(0.01, 1), effective="momentum"), "momentum": Float(0, 0.9)},
         False),
        ({"lr": Float(0.01, 1), "momentum": Choice((0.5, 0.9))}, False),
        ({"lr": Float(0.01, 1), "momentum": at.Fixed(0.9)}, False),
        ({"lr": Float(0.01, 1)}, False),
    ],
)  # fmt: skip
def test_where_there_is_an_effective_learning_rate_to_see(entries: dict, there: bool) -> None:
    space = SearchSpace(entries)
    found = effective_rate(space)
    assert (found is not None) == there
    for point in space.sample(50) if found is not None else ():
        assert 0 <= found.feature(point) <= 1


# --- from one study to the next -------------------------------------------------------------------


def racing_to(centre: dict[str, float], name: str) -> tuple[at.Experiment, Callable[..., SimCurve]]:
    """Learns the faster the nearer the point is to the centre; a tenth of the points arrive."""
    space = SearchSpace({n: Float(0, 1) for n in centre})

    def curve(config: dict, seed: int) -> SimCurve:
        away = sum((config[n] - c) ** 2 for n, c in centre.items())
        speed = 1 / (1 + 6 * away)
        return SimCurve([SimPoint(t, t * 0.1, {METRIC: speed * t / 20}) for t in range(61)])

    return at.Experiment(name, toy_train, space, Target(METRIC, 1.0, limit=5)), curve


HERE = {f"x{i}": 0.75 for i in range(6)}
NEAR = {f"x{i}": 0.7 for i in range(6)}
FAR = {f"x{i}": 0.15 for i in range(6)}


def after(folder: Path, centre: dict, seed: int, trials: int, source: Path | None) -> float:
    """How far the best of a study is behind the best there can be."""
    experiment, curve = racing_to(centre, "next")
    result = simulate(
        experiment, folder, trials, curve, workers=4, sampler="policy:elite", seed=seed,
        start_from=source,
    )  # fmt: skip
    best = min(result.trials, key=lambda t: experiment.target.score(t) or math.inf)
    return sum((best.config[n] - c) ** 2 for n, c in centre.items())


@pytest.mark.slow
def test_a_warm_start_helps_on_a_related_task_and_does_not_ruin_an_unrelated_one(
    fast_path: Path,
) -> None:
    experiment, curve = racing_to(HERE, "first")
    source = fast_path / "first"
    simulate(experiment, source, 60, curve, workers=4, sampler="tpe", seed=7)
    behind: dict[tuple[str, bool], list[float]] = {}
    for task, centre, seeds in (("near", NEAR, 6), ("far", FAR, 12)):
        for seed in range(seeds):
            for warm in (True, False):
                folder = fast_path / f"{task}-{warm}-{seed}"
                own = after(folder, centre, seed, 20, source if warm else None)
                behind.setdefault((task, warm), []).append(own)
    means = {key: statistics.mean(own) for key, own in behind.items()}
    assert means["near", True] < 0.5 * means["near", False]
    assert means["far", True] < 1.6 * means["far", False]
    assert after(fast_path / "long", FAR, 1, 60, source) < 0.1


def test_what_two_spaces_share_is_transferred_by_value_and_made_wider() -> None:
    old = SearchSpace(
        {
            "lr": Float(0.001, 10, log=True),
            "batch": Int(16, 1024, power_of_two=True),
            "o": Choice(("sgd", "adam", "lars")),
            "gone": Float(0, 1),
            "kind": Float(0, 1),
        }
    )
    new = SearchSpace(
        {
            "lr": Float(0.01, 1, log=True),
            "batch": Int(16, 64, power_of_two=True),
            "o": Choice(("lars", "sgd", "lamb")),
            "kind": Choice((1, 2)),
            "new": Float(0, 1),
        }
    )
    source = uniform(old.parameters())
    for _ in range(30):
        source = natural_gradient_step(
            source, [draw_of_point(old.parameters(), {"lr": 0.2, "batch": 512, "o": "sgd"})] * 6
        )
    policy = transferred(source, new)
    assert value_at(new.parameters()["lr"], unit_at(policy.means["lr"])) == pytest.approx(0.2, 0.05)
    assert policy.spreads["lr"] > 2 * source.spreads["lr"]
    assert value_at(new.parameters()["batch"], unit_at(policy.means["batch"])) == 64
    odds = dict(zip(("lars", "sgd", "lamb"), policy.probabilities("o"), strict=True))
    assert odds["sgd"] > 0.45
    assert odds["lamb"] > 0.15
    assert odds["lars"] > 0.14
    assert (policy.means["new"], policy.spreads["new"]) == (0.0, 1.0)
    assert policy.probabilities("kind") == (0.5, 0.5)


def test_a_policy_is_read_back_as_it_was_written() -> None:
    policy = some_policy(4)
    payload = json.loads(json.dumps(document(policy)))
    again = from_document(payload)
    assert again.means == policy.means
    assert again.spreads == policy.spreads
    for name in policy.logits:
        assert again.probabilities(name) == pytest.approx(policy.probabilities(name))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "version 2"),
        ({"parameters": 3}, "no policy"),
        ({"parameters": {"x": {"kind": "Float", "low": 0, "high": 1, "mean": 9, "spread": 1}}},
         "'x' cannot be read: 9 is no number"),
        ({"parameters": {"x": {"kind": "Real"}}}, "'x' cannot be read: 'Real'"),
        ({"parameters": {"o": {"kind": "Choice", "options": [1], "probabilities": [0.5, 0.5]}}},
         "add up to 1"),
    ],
)  # fmt: skip
def test_a_damaged_policy_gets_one_clear_line(tmp_path: Path, change: dict, says: str) -> None:
    source = tmp_path / "old"
    source.mkdir()
    payload = {**document(uniform(BOWL.parameters())), **change}
    (source / "policy.json").write_text(json.dumps(payload))
    experiment, curve = racing_to(NEAR, "next")
    with pytest.raises(UserError, match=says) as caught:
        simulate(experiment, tmp_path / "n", 3, curve, sampler="policy:elite", start_from=source)
    assert "\n" not in str(caught.value)


def test_the_policy_json_alone_is_a_start_and_a_resumed_study_needs_its_source_no_more(
    fast_path: Path,
) -> None:
    experiment, curve = racing_to(HERE, "first")
    simulate(experiment, fast_path / "first", 30, curve, sampler="policy:elite")
    only = fast_path / "only"
    only.mkdir()
    (fast_path / "first" / "policy.json").rename(only / "policy.json")
    options = {"sampler": "policy:elite", "start_from": only, "seed": 3}
    whole = simulate(experiment, fast_path / "whole", 20, curve, **options)
    simulate(experiment, fast_path / "parts", 9, curve, **options)
    (only / "policy.json").unlink()
    parts = simulate(experiment, fast_path / "parts", 20, curve, **options)
    assert [t.params for t in whole.trials] == [t.params for t in parts.trials]
    resolved = manifest.read(fast_path / "parts")
    assert resolved["start_from"] == str(only)
    assert resolved["start"]["version"] == 1


@pytest.mark.parametrize(
    ("sampler", "source", "says"),
    [
        ("tpe", "nowhere", "is no folder"),
        ("tpe", ".", "has neither a study nor a policy.json"),
        ("tpe", "empty", "no trial of it has ended"),
        ("tpe", "other", "has no parameter in common with this one: it has y, and"),
        ("auto", "next", "own folder"),
        ("policy:elite", "nowhere", "is no folder"),
        ("policy:elite", ".", "has neither a study nor a policy.json"),
        ("policy:elite", "empty", "no trial of it has ended"),
        (
            "policy:elite",
            "other",
            "has no parameter in common with this one: it has y, and",
        ),
        ("policy:elite", "next", "own folder"),
    ],
)
def test_a_wrong_start_gets_one_clear_line(
    fast_path: Path, sampler: str, source: str, says: str
) -> None:
    experiment, curve = racing_to(NEAR, "first")
    simulate(experiment, fast_path / "first", 3, curve)
    simulate(experiment, fast_path / "empty", 3, curve, time_limit=1e-9)
    other, own = racing_to({"y": 0.5}, "other")
    simulate(other, fast_path / "other", 3, own)
    with pytest.raises(UserError, match=says) as caught:
        simulate(
            experiment, fast_path / "next", 3, curve, sampler=sampler,
            start_from=fast_path / source,
        )  # fmt: skip
    assert "\n" not in str(caught.value)
    assert not (fast_path / "next").exists()


def test_the_command_line_refuses_a_wrong_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(Path(__file__).parents[2] / "support" / "toy_recipes.py") + ":good"
    words = ["run", recipe, "--out", str(tmp_path / "s"), "--sampler", "policy:elite"]
    assert main.main([*words, "--from", str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--from" in error
    assert "is no folder" in error


@pytest.mark.parametrize("space", [EVERYTHING, WIDE])
def test_a_space_is_read_back_from_the_manifest(fast_path: Path, space: SearchSpace) -> None:
    experiment = at.Experiment("wide", toy_train, space, Target(METRIC, 0.9, limit=5))
    simulate(experiment, fast_path, 1, lambda c, s: SimCurve([SimPoint(0, 0.0, {METRIC: 0.1})]))
    again = Manifest.read(fast_path).search_space(fast_path)
    assert again.sample(200, seed=3) == space.sample(200, seed=3)
    assert describe(again) == describe(space)
