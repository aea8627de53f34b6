"""What may be asked of a schedule: extremes, edges, where it leaves, and what it means."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from curves import CASES, Case, every, is_product, largest_of, leaves, positive, progresses, quick
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.schedules import (
    WSD,
    Constant,
    Cosine,
    Effective,
    Exponential,
    Following,
    Linear,
    Mirrored,
    OneCycle,
    Piecewise,
    Polynomial,
    Schedule,
    Stages,
    Step,
    edges_of,
    extremes,
    meaning,
    outside,
    same_meaning,
    scaled,
    stages,
    warmed,
)

# Extremes.


def looked_at(schedule: Schedule) -> list[float]:
    """Values at many places, and at every edge from both sides."""
    near = [x for edge in edges_of(schedule) for x in (edge, math.nextafter(edge, 0.0))]
    return [schedule(x) for x in (*(i / 500 for i in range(501)), *near)]


@every
@quick
@given(data=st.data(), x=progresses)
def test_no_value_is_beyond_the_extremes(case: Case, data: st.DataObject, x: float) -> None:
    schedule = data.draw(case.some)
    least, most = extremes(schedule)
    slack = 0.03 * largest_of(schedule) if is_product(schedule) else 0.0
    seen = (*looked_at(schedule), schedule(x))
    assert type(schedule(x)) is float
    assert least - slack <= min(seen)
    assert max(seen) <= most + slack


@every
@quick
@given(data=st.data())
def test_the_extremes_are_reached(case: Case, data: st.DataObject) -> None:
    """Or come near to: a limit at an edge, an extreme between the places looked at."""
    schedule = data.draw(case.some)
    least, most = extremes(schedule)
    seen, near = looked_at(schedule), 0.03 * largest_of(schedule)
    assert min(seen) <= least + near
    assert max(seen) >= most - near


@quick
@given(schedule=CASES[OneCycle].some | CASES[WSD].some | CASES[Piecewise].some)
def test_extremes_of_a_formula_are_its_numbers(schedule: Schedule) -> None:
    assert {*extremes(schedule)} <= {*looked_at(schedule)}


EXTREMES: dict[str, tuple[Schedule, tuple[float, float]]] = {
    "constant": (Constant(3), (3, 3)),
    "falling": (Polynomial(2, -1), (-1, 2)),
    "no warm-up, so no start": (WSD(-5, 1, 0.5, warmup=0), (0.5, 1)),
    "a limit is never reached": (Stages((0.5,), (Linear(0, 5), Constant(1))), (0, 5)),
    "mirrored": (Mirrored(OneCycle(0.1, 1, 0), 0.85, 0.95), (0.85, 0.95)),
    "mirrored constant": (Mirrored(Linear(2, 2), 0.85, 0.95), (0.85, 0.85)),
    "product of steps": (
        Following(Linear(1, 0), stages((1, 128), (1, 256)), 1, 128),
        (0, 1),
    ),
    "its jump": (Following(Constant(1), stages((1, 128), (1, 512)), 0.5, 128), (1, 2)),
    "parabola": (Effective(Linear(0, 1), Linear(0, 0.8)), (0, 0.3125)),
    "before a jump": (Effective(Linear(0, 1), stages((1, 0), (1, 0.9))), (0, 0.5)),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes(name: str) -> None:
    schedule, expected = EXTREMES[name]
    assert extremes(schedule) == pytest.approx(expected, rel=1e-6)
    if not is_product(schedule):
        assert extremes(schedule) == expected


def test_extremes_are_computed_once() -> None:
    schedule = Mirrored(Effective(Cosine(1, 0), Linear(0.5, 0.9)), 0.85, 0.95)
    assert extremes(schedule.of) is extremes(schedule.of)
    assert schedule(0.3) == schedule(0.3)


# Edges.

EDGES: dict[str, tuple[Schedule, tuple[float, ...]]] = {
    "none": (Cosine(1, 0), ()),
    "step": (Step(1, 0.1, (0.2, 0.7)), (0.2, 0.7)),
    "peak": (OneCycle(0, 1, 0), (0.3,)),
    "trapezoid": (WSD(0, 1, 0, warmup=0.25, decay=0.5), (0.25, 0.5)),
    "no warm-up": (WSD(0, 1, 0, warmup=0, decay=0.25), (0.75,)),
    "no hold": (WSD(0, 1, 0, warmup=0.3, decay=0.7), (0.3,)),
    "only decay": (WSD(0, 1, 0, warmup=0, decay=1), ()),
    "within": (Stages((0.5,), (OneCycle(0, 1, 0), Step(1, 0.1, (0.5,)))), (0.15, 0.5, 0.75)),
    "twice": (Following(Step(1, 0.1, (0.5,)), Step(2, 1, (0.2, 0.5)), 1, 1), (0.2, 0.5)),
    "mirrored": (Mirrored(OneCycle(0, 1, 0), 0, 1), (0.3,)),
    "effective": (Effective(warmed(Constant(1), 0.1), OneCycle(0.9, 0.8, 0.9)), (0.1, 0.3)),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    schedule, expected = EDGES[name]
    assert edges_of(schedule) == expected


levels = st.integers(0, 2**20).map(Constant)
jumps = st.recursive(
    levels,
    lambda some: st.lists(st.tuples(st.integers(1, 9), some), min_size=1, max_size=4).map(
        lambda parts: stages(*parts)
    ),
    max_leaves=12,
)


@quick
@given(schedule=jumps, x=progresses)
def test_levels_change_at_edges_only(schedule: Schedule, x: float) -> None:
    knots = (0.0, *edges_of(schedule), 1.0)
    for low, high in pairwise(knots):
        assert low < high
        inside = schedule(low)
        assert inside == schedule(math.nextafter(high, 0.0))
        assert inside == schedule(low + (high - low) * x) or x > 0.99


@quick
@given(lengths=st.lists(st.integers(1, 40), min_size=2, max_size=6), outer=st.integers(1, 99))
def test_inner_edges_are_the_first_of_the_later_part(lengths: list[int], outer: int) -> None:
    inner = stages(*((length, Constant(i)) for i, length in enumerate(lengths)))
    schedule = Stages((outer / 100,), (Constant(-1), Stages((0.5,), (inner, Constant(99)))))
    assert len(edges_of(schedule)) == len(lengths) + 1
    for edge in edges_of(schedule):
        assert schedule(math.nextafter(edge, 0.0)) < schedule(edge)


# Where it leaves what is allowed.

OUTSIDE: dict[str, tuple[Schedule, Callable[[float], bool]]] = {
    "": (warmed(Cosine(0.4, 0), 0.1), lambda v: v >= 0),
    "it goes up to 1.2": (Linear(0.5, 1.2), lambda v: v <= 1),
    "it goes down to 0": (Cosine(1, 0), lambda v: v > 0),
    "it goes from -1 to 2": (OneCycle(-1, 2, 0), lambda v: 0 <= v <= 1),
    "it is 0": (Constant(0), lambda v: v > 0),
    "it goes up to 1.0000000001": (Linear(0, 1.0000000001), lambda v: v <= 1),
    "stage 2 of 3 (10-50%) goes down to -0.1": (
        Stages((0.1, 0.5), (Linear(0, 1), Linear(1, -0.1), Constant(-1))),
        lambda v: v >= 0,
    ),
    "stage 2 of 2 (50-100%) is 1": (stages((1, Linear(0, 0.5)), (1, 1)), lambda v: v < 1),
    "value 2 of 3 (from 40%) is 0": (stages((4, 1), (1, 0), (5, 2)), lambda v: v > 0),
    "value 1 of 1 (from 0%) is 0": (Piecewise((), (0,), "constant"), lambda v: v > 0),
    "value 3 of 3 (at 100%) is 0": (Piecewise((0.4,), (1, 2, 0)), lambda v: v > 0),
    "stage 2 of 2 (50-100%): value 2 of 2 (from 75%) is 9": (
        stages((1, Linear(0, 1)), (1, stages((1, 1), (1, 9)))),
        lambda v: v < 5,
    ),
    "stage 1 of 2 (0-50%): stage 2 of 2 (25-50%) goes up to 9": (
        stages((1, stages((1, Linear(0, 1)), (1, Linear(1, 9)))), (1, 1)),
        lambda v: v < 5,
    ),
    "stage 2 of 2 (50-100%) goes up to 4": (
        stages((1, 1), (1, Following(Linear(1, 2), Constant(2), 1, 1))),
        lambda v: v < 3,
    ),
}


@pytest.mark.parametrize("text", OUTSIDE)
def test_outside(text: str) -> None:
    schedule, allowed = OUTSIDE[text]
    assert outside(schedule, allowed) == text


@every
@quick
@given(data=st.data(), low=st.floats(-1e3, 1e3), width=st.floats(0.0, 1e3))
def test_outside_is_empty_exactly_within(
    case: Case, data: st.DataObject, low: float, width: float
) -> None:
    schedule = data.draw(case.some)
    least, most = extremes(schedule)
    found = outside(schedule, lambda value: low <= value <= low + width)
    assert (found == "") == (low <= least and most <= low + width)
    assert "\n" not in found
    assert outside(schedule, lambda value: least <= value <= most) == ""


# Meaning.

lr = Linear(0.4, 0.1)
SAME: dict[str, tuple[Schedule, Schedule]] = {
    "a line that is level": (Linear(1, 1), Constant(1)),
    "power 1": (Polynomial(0.4, 0, power=1), Linear(0.4, 0)),
    "minus 0": (Constant(-0.0), Constant(0)),
    "no hold": (
        WSD(0, 1, 0, warmup=0.3, decay=0.7),
        Stages((0.3,), (Linear(0, 1), Linear(1, 0))),
    ),
    "no warm-up": (WSD(0.7, 1, 0, warmup=0), WSD(0, 1, 0, warmup=0)),
    "warm-up": (WSD(0, 1, 1, warmup=0.25), warmed(Constant(1), 0.25)),
    "one-cycle by stages": (
        OneCycle(0.1, 1, 0, 0.3),
        Stages((0.3,), (Cosine(0.1, 1), Cosine(1, 0))),
    ),
    "equal neighbours": (stages((1, 8), (1, 8), (2, 16)), stages((2, 8), (2, 16))),
    "knots on a line": (Piecewise((0.25,), (0, 1, 4)), Linear(0, 4)),
    "steps": (Step(1, 0.01), Piecewise((0.5, 0.75), (1, 0.1, 0.01), "constant")),
    "only stage": (Stages((), (lr,)), lr),
    "nested": (
        stages((1, Cosine(0, 1)), (9, stages((2, lr), (7, Constant(0.1))))),
        stages((1, Cosine(0, 1)), (2, lr), (7, 0.1)),
    ),
    "follows what does not change": (Following(lr, Constant(256), 0.5, 64), scaled(lr, 2)),
    "power 0": (Following(lr, Linear(1, 9), 0, 5), lr),
    "follows jumps": (
        Following(Constant(0.1), stages((1, 128), (3, 256)), 1, 128),
        stages((1, 0.1), (3, 0.2)),
    ),
    "no momentum": (Effective(lr, Constant(0)), lr),
    "mirrored line": (Mirrored(Linear(3, 7), 0.85, 0.95), Linear(0.95, 0.85)),
    "mirrored constant": (Mirrored(Constant(3), 0.85, 0.95), Constant(0.85)),
}
LATE = 1.0 - 1e-4
DIFFERENT: dict[str, tuple[Schedule, Schedule]] = {
    "value": (Constant(1), Constant(1.0000001)),
    "sign": (Constant(1e-30), Constant(-1e-30)),
    "zero": (Constant(1e-30), Constant(0)),
    "shape": (Linear(1, 0), Cosine(1, 0)),
    "end": (Linear(1, 0), Linear(1, 1e-6)),
    "short bump": (Constant(1), stages((3000, 1), (1, 2), (6999, 1))),
    "short end": (Constant(1), Stages((LATE,), (Constant(1), Linear(1, 2)))),
    "edge": (stages((1, 1), (1, 2)), Piecewise((0.50001,), (1, 2), "constant")),
    "floor": (Exponential(1, 0.001), Exponential(1, 0.0011)),
}


@pytest.mark.parametrize("name", SAME)
def test_same_meaning(name: str) -> None:
    a, b = SAME[name]
    assert a != b or name == "minus 0"
    assert same_meaning(a, b)
    assert same_meaning(b, a)
    assert meaning(a) == meaning(b)
    assert hash(meaning(a)) == hash(meaning(b))


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_meaning(name: str) -> None:
    a, b = DIFFERENT[name]
    assert not same_meaning(a, b)
    assert not same_meaning(b, a)
    if name not in ("short bump", "edge"):
        assert meaning(a) != meaning(b)


@every
@quick
@given(data=st.data())
def test_another_way_to_write_it_means_the_same(case: Case, data: st.DataObject) -> None:
    schedule = data.draw(case.some)
    least, most = extremes(schedule)
    twins = [
        Stages((), (schedule,)),
        Effective(schedule, Constant(0)),
        Following(schedule, Linear(8, 8), 2, 8),
        Mirrored(Mirrored(schedule, least, most), least, most),
    ]
    for twin in twins if not is_product(schedule) else twins[:3]:
        assert same_meaning(schedule, twin)
        assert same_meaning(twin, schedule)
    if largest_of(schedule) > 1e-300:  # a number with all its digits
        assert not same_meaning(schedule, scaled(schedule, 1.001))


@quick
@given(a=leaves, b=leaves, lengths=st.tuples(*3 * (st.integers(1, 50),)), c=positive)
@example(a=Linear(0, 1), b=WSD(0, 1, 0), lengths=(1, 1, 1), c=Constant(1))
def test_nested_stages_mean_the_flat_ones(
    a: Schedule, b: Schedule, lengths: tuple[int, int, int], c: Schedule
) -> None:
    first, second, third = lengths
    flat = stages((first, a), (second, b), (third, c))
    left = stages((first + second, stages((first, a), (second, b))), (third, c))
    right = stages((first, a), (second + third, stages((second, b), (third, c))))
    assert same_meaning(flat, left)
    assert same_meaning(flat, right)
    assert same_meaning(left, right)
