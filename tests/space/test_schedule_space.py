"""Searched schedules: every point is a valid schedule, and different points mean different ones."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import schedules
from autotune.space.knotted_schedules import spread, unrepeated
from autotune.space.parameters import options
from autotune.space.schedule_space import FAMILIES, ScheduleSpace
from autotune.space.search_space import Choice, Fixed, Float, Int, SearchSpace
from autotune.storage.codec import decode_config, encode

GRID = np.linspace(0, 1, 401)
LOG = Float(0.01, 1.0, log=True)
COUNTED = ("constant", "staircase")
ALONE = tuple(f for f in FAMILIES if f != "mirror")
shares = st.floats(0.02, 0.98)


def space_of(family: str, **more: Any) -> SearchSpace:
    final = Float(0.01, 0.5, log=True)
    fields = {"warmup": Float(0, 0.3), "power": Float(0.5, 4), "decay": Float(0.1, 0.5)}
    fields |= {"start": Float(0.01, 0.5), "peak_at": Float(0.1, 0.9), "knots": Int(1, 3)}
    return SearchSpace({"x": ScheduleSpace(LOG, family=family, final=final, **{**fields, **more})})


EVERYTHING = SearchSpace(
    {
        "batch_size": ScheduleSpace(
            Int(16, 512, power_of_two=True),
            family=Choice(COUNTED),
            knots=Int(1, 2),
            direction="rising",
        ),
        "image_size": ScheduleSpace(
            Int(4, 8, step=2), family=Choice(COUNTED), knots=1, direction="free"
        ),
        "momentum": ScheduleSpace(
            Float(0.8, 0.98),
            family=Choice(("constant", "mirror")),
            final=Float(0.8, 1.0),
            mirrors="lr",
        ),
        "lr": ScheduleSpace(
            Float(0.1, 10, log=True),
            family=Choice(ALONE),
            final=Float(0.001, 0.3, log=True),
            warmup=Float(0, 0.4),
            follows="batch_size",
            rule=Choice(("none", "sqrt", "linear")),
            effective="momentum",
        ),
    }
)


@pytest.mark.parametrize("family", ALONE)
@pytest.mark.parametrize("direction", ["falling", "rising", "free"])
def test_every_point_is_a_schedule_between_its_bounds(family: str, direction: str) -> None:
    space = space_of(family, direction=direction)
    points = space.sample(60, seed=1)
    assert space.duplicates(points) == []
    for point in points:
        assert space.check(point) == point
        found = space.config(point)["x"]
        low, high = schedules.extremes(found)
        assert -1e-12 <= low <= high <= 1.0 + 1e-12
        assert decode_config(encode({"x": found})) == {"x": found}
        if "x.peak" in point:
            assert high == pytest.approx(point["x.peak"])
        settled = found.parts[-1] if point.get("x.warmup") else found
        if family in ("piecewise", "staircase") and direction != "free":
            steps = np.diff(settled(GRID))
            assert (steps <= 1e-12).all() if direction == "falling" else (steps >= -1e-12).all()


def test_a_family_has_only_its_own_parameters() -> None:
    space = space_of(Choice(("linear", "wsd", "one_cycle", "staircase", "constant")))
    own = {
        "linear": {"final", "warmup"},
        "wsd": {"final", "warmup", "decay"},
        "one_cycle": {"final", "start", "peak_at"},
        "constant": {"warmup"},
    }
    for point in space.sample(80):
        family = point["x.family"]
        if family == "staircase":
            knots = point["x.knots"]
            inner = {f"{kind}{i}" for kind in ("edge", "value") for i in range(1, knots + 1)}
            assert point.keys() == {f"x.{f}" for f in {"family", "peak", "warmup", "knots"} | inner}
        else:
            assert point.keys() == {f"x.{f}" for f in {"family", "peak"} | own[family]}


@given(st.lists(shares, min_size=1, max_size=6))
def test_knots_are_spread_strictly_in_order(given_shares: list[float]) -> None:
    places = spread(given_shares)
    assert all(0 < a < b < 1 for a, b in itertools.pairwise((0.0, *places, 1.0)) if a and b < 1)
    assert len(set(places)) == len(places)
    rest, left = [], 0.0
    for i, place in enumerate(places):  # the way back: no two lists of shares give one of places
        rest.append(1 - (1 - (place - left) / (1 - left)) ** (len(places) - i))
        left = place
    assert rest == pytest.approx(given_shares, abs=1e-7)


def test_even_shares_give_places_like_sorted_even_numbers() -> None:
    random = np.random.default_rng(0)
    places = np.array([spread(row) for row in random.uniform(1e-9, 1, (4000, 3))])
    expected = np.sort(random.uniform(0, 1, (4000, 3)), axis=1)
    for own, other in zip(places.T, expected.T, strict=True):
        assert (
            abs(np.quantile(own, [0.1, 0.5, 0.9]) - np.quantile(other, [0.1, 0.5, 0.9])).max()
            < 0.03
        )


@pytest.mark.parametrize(("there", "count"), [(2, 3), (3, 2), (4, 4)])
def test_unrepeated_counts_every_sequence_once(there: int, count: int) -> None:
    boxes = [range(there), *[range(there - 1)] * (count - 1)]
    found = [tuple(unrepeated(box)) for box in itertools.product(*boxes)]
    every = itertools.product(range(there), repeat=count)
    assert sorted(found) == [s for s in every if all(a != b for a, b in itertools.pairwise(s))]


@pytest.mark.parametrize("direction", ["rising", "falling", "free"])
@pytest.mark.parametrize(
    "peak", [Int(16, 256, power_of_two=True), Int(96, 288, step=32)], ids=["powers", "steps"]
)
def test_whole_numbers_are_taken_from_their_grid_and_each_set_once(
    direction: Any, peak: Int
) -> None:
    space = ScheduleSpace(peak, family="staircase", knots=2, direction=direction)
    flat = {k.removeprefix("x."): v for k, v in space.parameters("x").items()}
    fixed = {"family": "staircase", "knots": 2, "edge1": 0.5, "edge2": 0.5}
    searched = {k: v for k, v in flat.items() if k not in fixed and isinstance(v, Int)}
    points = [
        dict(zip(searched, p, strict=True))
        for p in itertools.product(*map(options, searched.values()))
    ]
    found = [space.build({**fixed, **point}).values for point in points]
    assert len(set(found)) == len(found)
    there = len(options(peak))
    free = direction == "free"
    assert len(found) == (there * (there - 1) ** 2 if free else math.comb(there, 3))
    for values in found:
        assert set(values) <= set(options(peak))
        assert all(a != b for a, b in itertools.pairwise(values))
        if not free:
            assert list(values) == sorted(values, reverse=direction == "falling")


def test_everything_at_once_gives_ready_schedules_in_the_order_of_the_space() -> None:
    points = EVERYTHING.sample(300, seed=3)
    for point in points:
        config = EVERYTHING.config(point)
        assert list(config) == list(EVERYTHING.entries)
        assert all(isinstance(v, schedules.Schedule) for v in config.values())
        assert config["batch_size"](1.0) >= config["batch_size"](0.0) >= 16
        assert ("lr.rule" in point) == (point["batch_size.family"] == "staircase")
    assert EVERYTHING.duplicates(points) == []
    kinds = {type(EVERYTHING.config(p)["lr"]).__name__ for p in points}
    assert {"Following", "Effective", "Stages"} <= kinds


def test_the_learning_rate_follows_the_batch_size_whenever_it_changes() -> None:
    space = SearchSpace(
        {
            "batch_size": ScheduleSpace(
                Int(32, 256, power_of_two=True), family="staircase", knots=1, direction="rising"
            ),
            "lr": ScheduleSpace(
                LOG, family="linear", follows="batch_size", rule=Choice(("sqrt", "linear"))
            ),
        }
    )
    point = {"batch_size.edge1": 0.5, "batch_size.levels1": 2, "lr.peak": 0.4, "lr.rule": "sqrt"}
    config = space.config(space.check(point))
    small, large = config["batch_size"](0.0), config["batch_size"](1.0)
    assert large > small
    assert config["lr"](0.49) == pytest.approx(0.4 * 0.51)
    assert config["lr"](0.75) == pytest.approx(0.1 * math.sqrt(large / small))
    linear = space.config({**point, "lr.rule": "linear"})
    assert linear["lr"](0.75) == pytest.approx(0.1 * large / small)
    fixed = SearchSpace({**space.entries, "batch_size": Fixed(64)})
    assert fixed.config({"lr.peak": 0.4})["lr"] == schedules.Linear(0.4, 0.0)
    steady = SearchSpace({"b": Fixed(64), "lr": ScheduleSpace(0.4, family="linear", follows="b")})
    found = steady.config({})["lr"]  # one rule: kept for what a controller may change
    assert found == schedules.Following(schedules.Linear(0.4, 0), schedules.Constant(64), 1.0, 64)
    doubling = Fixed(schedules.stages((1, 64), (1, 128)))
    given = SearchSpace({**steady.entries, "b": doubling})
    assert given.config({})["lr"](0.5) == pytest.approx(0.4)


@pytest.mark.parametrize(("rule", "power"), [("none", 0.0), ("sqrt", 0.5), ("linear", 1.0)])
def test_with_a_reference_a_larger_batch_has_a_larger_rate_all_along(
    rule: str, power: float
) -> None:
    follows: dict[str, Any] = {"follows": "batch", "rule": rule, "reference": 64}
    space = SearchSpace(
        {"batch": Int(16, 256), "lr": ScheduleSpace(LOG, family="linear", **follows)}
    )
    for batch in (16, 64, 256):
        lr = space.config({"batch": batch, "lr.peak": 0.4})["lr"]
        for at in (0.0, 0.5):
            assert lr(at) == pytest.approx(0.4 * (1 - at) * (batch / 64) ** power)
    assert space.parameters().keys() == {"batch", "lr.peak"}
    searched = ScheduleSpace(0.4, family="linear", follows="batch", reference=64)
    searched = replace(searched, rule=Choice(("none", "linear")))
    both = SearchSpace({"batch": Fixed(128), "lr": searched})
    assert [both.config({"lr.rule": rule})["lr"](0) for rule in ("none", "linear")] == [0.4, 0.8]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reference": 64}, "reference needs follows=NAME"),
        ({"follows": "batch", "reference": 0}, "reference must be a number > 0 but got 0"),
        ({"follows": "batch", "reference": "64"}, "reference must be a number > 0 but got '64'"),
    ],
)
def test_a_wrong_reference_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ScheduleSpace(0.4, **given)


def test_the_effective_learning_rate_is_that_over_one_minus_momentum() -> None:
    entries = {
        "momentum": Float(0.5, 0.99),
        "lr": ScheduleSpace(Float(0.1, 10, log=True), family="linear", effective="momentum"),
    }
    lr = SearchSpace(entries).config({"momentum": 0.75, "lr.peak": 4.0})["lr"]
    assert lr == schedules.Linear(1.0, 0.0)
    mirror = ScheduleSpace(Float(0.8, 0.98), family="mirror", final=0.9, mirrors="lr")
    space = SearchSpace({**entries, "momentum": mirror})
    config = space.config({"momentum.peak": 0.9, "lr.peak": 4.0})
    for x in (0.0, 0.3, 0.8):
        effective = config["lr"](x) / (1 - config["momentum"](x))
        assert effective == pytest.approx(4.0 * (1 - x))
    assert config["momentum"](0.0) == pytest.approx(0.81)
    assert config["momentum"](1.0) == pytest.approx(0.9)


def test_the_size_of_a_space_counts_its_points() -> None:
    small = SearchSpace(
        {
            "kind": Choice(("a", "b")),
            "n": Int(1, 4),
            "m": Int(1, 9, step=4, when={"kind": "a"}),
            "p": Int(2, 16, power_of_two=True, when={"m": (1, 5)}),
        }
    )
    every = {tuple(sorted(p.items())) for p in small.sample(4000, seed=5)}
    assert small.size().points == len(every) == 4 * (1 + 1 + 4 + 4)
    assert str(small.size()) == "4 shapes with 2 to 4 parameters, 40 points"
    assert EVERYTHING.size().points == math.inf
    assert EVERYTHING.size().shapes > 100
    lengths = {len(p) for p in EVERYTHING.sample(3000)}
    assert (EVERYTHING.size().least, EVERYTHING.size().most) == (min(lengths), max(lengths))
    assert SearchSpace({"n": Fixed(1)}).size().points == 1


def test_points_of_the_same_meaning_are_reported() -> None:
    space = space_of(Choice(("linear", "polynomial", "constant")), warmup=0.0)
    same = [
        {"x.family": "linear", "x.peak": 0.5, "x.final": 0.1},
        {"x.family": "polynomial", "x.peak": 0.5, "x.final": 0.1, "x.power": 2.0},
        {"x.family": "polynomial", "x.peak": 0.5, "x.final": 0.1, "x.power": 1.0},
        {"x.family": "constant", "x.peak": 0.5},
    ]
    assert space.duplicates(same) == [(0, 2)]


def test_points_that_only_look_alike_are_not_reported() -> None:
    """Edges nearer than the places of `meaning` are still different edges."""
    peak = Int(16, 64, power_of_two=True)
    entry = ScheduleSpace(peak, family="staircase", knots=1, direction="rising")
    space = SearchSpace({"x": entry, "n": Int(1, 2)})
    points = space.sample(400, seed=0)
    found = [space.config(point)["x"] for point in points]
    meanings = {schedules.meaning(schedule) for schedule in found}
    assert len(meanings) < len(found), "the case that this is about"
    assert space.duplicates(points) == []
    twins = [*points, points[7], points[3], points[7]]
    assert space.duplicates(twins) == [(3, 401), (7, 400, 402)]
    assert space.duplicates([points[0], {**points[0], "n": 3 - points[0]["n"]}]) == []


@pytest.mark.parametrize("direction", ["rising", "falling", "free"])
def test_knots_do_not_matter_to_a_family_without_them(direction: Any) -> None:
    """Two sizes have no staircase of the default's two edges, but a constant each."""
    space = SearchSpace(
        {"x": ScheduleSpace(Int(4, 8, step=4), family="constant", direction=direction)}
    )
    assert space.size().points == 2
    assert {space.config(p)["x"] for p in space.sample(20)} == set(map(schedules.Constant, (4, 8)))


def test_samples_are_the_same_for_the_same_seed() -> None:
    assert EVERYTHING.sample(5, seed=1) == EVERYTHING.sample(5, seed=1)
    assert EVERYTHING.sample(5, seed=1) != EVERYTHING.sample(5, seed=2)
    drawn = [p["n"] for p in SearchSpace({"n": Int(1, 1000, log=True)}).sample(4000)]
    assert np.mean(np.array(drawn) <= 31) == pytest.approx(0.5, abs=0.04)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_a_sampled_point_survives_the_journal(seed: int) -> None:
    (point,) = EVERYTHING.sample(1, seed)
    config = EVERYTHING.config(point)
    assert decode_config(encode(config)) == config


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: ScheduleSpace(LOG, family="cosin"),
            "unknown schedule family 'cosin'; did you mean 'cosine'?",
        ),
        (lambda: ScheduleSpace(LOG, follows="b", rule="square"), "unknown rule 'square'"),
        (
            lambda: ScheduleSpace(LOG, direction="up"),
            "ScheduleSpace direction must be falling, rising or free, got 'up'",
        ),
        (
            lambda: ScheduleSpace(LOG, family="mirror"),
            "ScheduleSpace: family 'mirror' and mirrors=NAME belong together",
        ),
        (
            lambda: ScheduleSpace(LOG, family="piecewise", knots=0),
            "ScheduleSpace knots must lie in 1 to 16 but got 0",
        ),
        (
            lambda: ScheduleSpace(LOG, family="staircase", final=1.5),
            "ScheduleSpace final must lie in [0, 1], a share of the peak, but got 1.5",
        ),
        (
            lambda: ScheduleSpace(LOG, family="one_cycle", start=Float(0.5, 1.5)),
            "ScheduleSpace start must lie in [0, 1], a share of the peak, but got Float(",
        ),
        (
            lambda: ScheduleSpace(LOG, family="one_cycle", peak_at=0.0),
            "ScheduleSpace one_cycle with peak 0.01 and final 0.0: OneCycle: peak_at must",
        ),
        (
            lambda: ScheduleSpace(LOG, warmup=Float(0, 1)),
            "ScheduleSpace warmup must lie in [0, 1) but got Float(",
        ),
        (
            lambda: ScheduleSpace(Int(16, 64, power_of_two=True), family="linear"),
            "ScheduleSpace linear takes values between powers of two",
        ),
        (
            lambda: ScheduleSpace(Int(16, 64), family="piecewise"),
            "ScheduleSpace piecewise needs a Float peak",
        ),
        (
            lambda: ScheduleSpace(Int(16, 64, power_of_two=True), family="staircase", knots=3),
            "ScheduleSpace staircase with 3 knots needs 4 different values",
        ),
        (
            lambda: ScheduleSpace(Int(1, 500), family="staircase", knots=4),
            "ScheduleSpace staircase: 500 values at 4 knots can be chosen",
        ),
        (
            lambda: SearchSpace(
                {"lr": ScheduleSpace(LOG, effective="momentun"), "momentum": Fixed(0.9)}
            ),
            "lr: effective: unknown entry 'momentun'; did you mean 'momentum'?",
        ),
        (
            lambda: SearchSpace({"lr": ScheduleSpace(LOG, follows="lr")}),
            "lr: follows: unknown entry 'lr'",
        ),
        (
            lambda: SearchSpace(
                {
                    "lr": ScheduleSpace(LOG, follows="b", rule=Choice(("none", "linear"))),
                    "b": ScheduleSpace(Int(1, 9), family=Choice(COUNTED), knots=1),
                }
            ),
            "lr.rule: when: unknown parameter declared before it 'b.family'",
        ),
    ],
)
def test_mistakes_get_one_clear_line(make: Any, says: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_a_coupling_to_what_is_not_there_at_this_point_is_left_out() -> None:
    momentum = Float(0.5, 0.9, when={"o": "sgd"})
    lr = ScheduleSpace(LOG, family="linear", effective="momentum")
    space = SearchSpace({"o": Choice(("sgd", "adamw")), "momentum": momentum, "lr": lr})
    assert space.config({"o": "adamw", "lr.peak": 0.1})["lr"](0.0) == 0.1
    assert replace(lr, effective=None).families == ("linear",)


def test_it_rises_from_the_final_share_to_the_peak() -> None:
    space = ScheduleSpace(Int(16, 64), family="linear", final=0.25, direction="rising")
    assert space.build({"family": "linear", "peak": 64, "final": 0.25}) == schedules.Linear(16, 64)
    assert space.span == (4.0, 64)


def test_a_mirror_of_what_is_not_there_stays_at_its_peak() -> None:
    lr = ScheduleSpace(LOG, family="linear", when={"o": "a"})
    mirror = ScheduleSpace(0.9, family="mirror", final=0.5, mirrors="lr")
    space = SearchSpace({"o": Choice(("a", "b")), "lr": lr, "m": mirror})
    assert space.config({"o": "b"})["m"] == schedules.Constant(0.9)
    assert space.config({"o": "a", "lr.peak": 0.1})["m"](0.0) == pytest.approx(0.45)


M = ScheduleSpace(0.9, family="mirror", final=0.5, mirrors="lr")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ScheduleSpace("0.1"), "peak must be a number or Float or Int but got '0.1'"),
        (lambda: ScheduleSpace(0.1, final=None), "final must be a number or Float but got None"),
        (lambda: ScheduleSpace(0.1, knots="2"), "knots must be a number or Int but got '2'"),
        (lambda: ScheduleSpace(0.1, family=("a", "b")), "family must be a name, or a Choice of"),
        (lambda: ScheduleSpace(0.1, rule=["linear"]), "rule must be a name, or a Choice of names"),
        (lambda: ScheduleSpace(0.1, when="x"), "when must be a dict but got 'x'"),
        (lambda: ScheduleSpace(Int(16, 64), family="linear"), "at least 1, but it goes down to 0"),
        (
            lambda: ScheduleSpace(Int(16, 64), family="constant", warmup=Float(0, 0.1)),
            "whole numbers must stay at least 1, but it goes down to 0",
        ),
        (
            lambda: SearchSpace({"lr": ScheduleSpace(0.1), "m": M, "n": replace(M, mirrors="m")}),
            "n: mirrors: m is itself a mirror",
        ),
        (
            lambda: SearchSpace({"b": Choice(("x", "y")), "lr": ScheduleSpace(0.1, follows="b")}),
            "lr: follows: b must be a schedule or a number but got Choice",
        ),
        (
            lambda: SearchSpace({"m": Float(0.5, 1), "lr": ScheduleSpace(0.1, effective="m")}),
            r"lr: effective: m must lie in \[0, 1\) but goes from 0.5 to 1",
        ),
        (
            lambda: SearchSpace({"b": Int(0, 9), "lr": ScheduleSpace(0.1, follows="b")}),
            "lr: follows: b must be greater than 0 but goes down to 0",
        ),
    ],
)
def test_kinds_and_couplings_that_cannot_be_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        make()
    assert "\n" not in str(error.value)
