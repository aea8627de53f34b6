"""Schedules made from schedules, and parts put one after another."""

from __future__ import annotations

import math
import pickle

import pytest
from curves import leaves, momenta, positive, progresses, quick, values
from hypothesis import given
from hypothesis import strategies as st

from autotune.schedules import (
    Constant,
    Cosine,
    Effective,
    Following,
    Linear,
    Mirrored,
    OneCycle,
    Piecewise,
    Schedule,
    Spliced,
    Stages,
    edges_of,
    extremes,
    scaled,
    stages,
    warmed,
)


@quick
@given(base=leaves, other=positive, power=st.floats(-2, 2), x=progresses)
def test_following_is_its_formula(base: Schedule, other: Schedule, power: float, x: float) -> None:
    expected = base(x) * (other(x) / 64.0) ** power
    assert Following(base, other, power, 64)(x) == pytest.approx(expected, rel=1e-14)


def test_following_the_batch_size() -> None:
    """The linear rule doubles the rate where the batch doubles, that of the square root by 2^.5."""
    batch = stages((30, 256), (30, 512), (30, 1024))
    linear = Following(Constant(0.1), batch, 1, 256)
    root = Following(Constant(0.1), batch, 0.5, 256)
    assert [linear(x) for x in (0.0, 0.5, 0.9)] == [0.1, 0.2, 0.4]
    assert [root(x) for x in (0.0, 0.5, 0.9)] == pytest.approx([0.1, 0.1 * math.sqrt(2), 0.2])
    cosine = Following(Cosine(0.4, 0), batch, 1, 256)
    assert cosine(0.2) == Cosine(0.4, 0)(0.2)
    assert cosine(1.0) == 0.0


@quick
@given(parts=st.tuples(leaves, leaves, leaves), x=progresses)
def test_what_is_spliced_goes_on_as_if_it_had_held_all_along(
    parts: tuple[Schedule, ...], x: float
) -> None:
    now = parts[0] if x < 0.25 else parts[1] if x < 0.7 else parts[2]
    assert Spliced((0.25, 0.7), parts)(x) == now(x)


def test_what_a_spliced_part_does_elsewhere_does_not_count() -> None:
    found = Spliced((0.5,), (Linear(0, 100), Piecewise((0.25, 0.75), (-9, 1, 2), kind="constant")))
    assert extremes(found) == (0.0, pytest.approx(50.0))
    assert edges_of(found) == (0.5, 0.75)


@quick
@given(of=leaves, low=values, width=st.floats(0, 10), x=progresses)
def test_mirrored_is_its_formula(of: Schedule, low: float, width: float, x: float) -> None:
    least, most = extremes(of)
    share = (of(x) - least) / (most - least) if least < most else 1.0
    mirrored = Mirrored(of, low, low + width)
    assert mirrored(x) == pytest.approx(low + width * (1.0 - share), rel=1e-9, abs=1e-9)
    assert mirrored.low <= mirrored(x) <= mirrored.high
    if of(x) in (least, most):
        assert mirrored(x) in (mirrored.low, mirrored.high)


def test_mirrored_moves_opposite() -> None:
    rate = warmed(Cosine(0.4, 0), 0.1)
    momentum = Mirrored(rate, 0.85, 0.95)
    assert [momentum(x) for x in (0.0, 0.1, 1.0, 2.0)] == [0.95, 0.85, 0.95, 0.95]
    assert momentum(0.05) == pytest.approx(0.9)


@quick
@given(base=leaves, momentum=momenta, x=progresses)
def test_effective_rate_is_the_base(base: Schedule, momentum: Schedule, x: float) -> None:
    rate = Effective(base, momentum)
    assert rate(x) == base(x) * (1.0 - momentum(x))
    assert rate(x) / (1.0 - momentum(x)) == pytest.approx(base(x), rel=1e-12)


def test_what_was_asked_leaves_no_trace_in_a_pickle() -> None:
    schedule = Mirrored(OneCycle(0.04, 1, 0), 0.85, 0.95)
    before = pickle.dumps(schedule)
    assert schedule(0.3) == 0.85
    assert extremes(schedule) == (0.85, 0.95)
    assert pickle.dumps(schedule) == before
    assert pickle.loads(before)(0.3) == 0.85


# stages


@quick
@given(lengths=st.lists(st.integers(1, 10**9), min_size=2, max_size=20))
def test_whole_lengths_give_exact_edges(lengths: list[int]) -> None:
    total = sum(lengths)
    expected = tuple(sum(lengths[:i]) / total for i in range(1, len(lengths)))
    made = stages(*((length, Constant(1)) for length in lengths))
    assert isinstance(made, Stages)
    assert made.edges == expected
    assert made == stages(*((float(length), Constant(1)) for length in lengths))


def test_stages_from_numbers_and_schedules() -> None:
    assert stages((6, Linear(1.88, 3.76)), (10, 1.88), (4, 0.25)) == Stages(
        (0.3, 0.8), (Linear(1.88, 3.76), Constant(1.88), Constant(0.25))
    )
    assert stages((1, 128), (1, 256)) == Piecewise((0.5,), (128, 256), "constant")
    assert stages((0.1, 1), (0.3, 2), (0.6, 3)) == Piecewise((0.1, 0.4), (1, 2, 3), "constant")
    assert stages((7, 0.5)) == Constant(0.5)
    whole = Cosine(1, 0)
    assert stages((7, whole)) is whole


def test_numbers_are_constant_schedules_wherever_schedules_are_made() -> None:
    assert warmed(0.5, 0.25) == warmed(Constant(0.5), 0.25)
    assert scaled(0.5, 3) == Constant(1.5)
