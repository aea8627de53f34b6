"""Up to which progress schedules, and configurations, are the same."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

import pytest
from curves import CASES, made, progresses, quick
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.schedules import (
    WSD,
    Constant,
    Cosine,
    Effective,
    Following,
    Linear,
    Mirrored,
    Piecewise,
    Schedule,
    Spliced,
    Stages,
    Step,
    Until,
    warmed,
)
from autotune.schedules.agreement import agrees_until, configs_agree_until

some = st.one_of([case.some for case in CASES.values()]) | made
HALF = Piecewise((0.5,), (128, 256), kind="constant")
EARLIER = Piecewise((0.25,), (128, 256), kind="constant")
STABLE = WSD(0.0, 1.0, 0.0, warmup=0.1, decay=0.2)


def bits(value: float) -> bytes:
    return struct.pack("d", value)


@st.composite
def related(draw: st.DrawFn) -> tuple[Schedule, Schedule]:
    """Two schedules that begin alike: of one family, with other numbers, or spliced."""
    a, b = draw(some), draw(some)
    edge = draw(st.integers(1, 99)) / 100
    pairs = [(a, b), (a, a), (a, Spliced((edge,), (a, b))), (a, Until(a, (edge,), (1.0,)))]
    pairs.append((warmed(a, edge), Spliced((edge,), (warmed(a, edge), b))))
    pairs.append((Stages((edge,), (a, b)), Stages((edge,), (a, Constant(1.0)))))
    pairs.append((Mirrored(a, 0.1, 0.9), Mirrored(Spliced((edge,), (a, b)), 0.1, 0.9)))
    if isinstance(a, WSD):
        pairs.append((a, replace(a, decay=min(edge, 1.0 - a.warmup) or 0.5)))
    return draw(st.sampled_from(pairs))


@quick
@given(pair=related(), shares=st.lists(progresses, min_size=1, max_size=20))
@example((Linear(1, 0), Stages((0.5,), (Linear(1, 0.5), Linear(0.5, 0)))), [0.1, 0.3, 0.9])
@example((Constant(0.0), Constant(-0.0)), [0.5])
def test_below_the_answer_the_values_are_the_same_bits(
    pair: tuple[Schedule, Schedule], shares: list[float]
) -> None:
    a, b = pair
    until = agrees_until(a, b)
    assert until == agrees_until(b, a)
    assert 0.0 <= until <= 1.0
    places = [*a._edge_list, *b._edge_list, *(until * share for share in shares), 0.0]
    near = [math.nextafter(until, 0.0), *places, *(math.nextafter(x, 0.0) for x in places)]
    for x in near:
        if 0.0 <= x < until:
            assert bits(a(x)) == bits(b(x))


@quick
@given(schedule=some)
def test_a_schedule_agrees_with_itself_to_the_end(schedule: Schedule) -> None:
    assert agrees_until(schedule, schedule) == 1.0


@pytest.mark.parametrize(
    ("a", "b", "until"),
    [
        (STABLE, replace(STABLE, decay=0.5), 0.5),
        (STABLE, replace(STABLE, end=0.1), 0.8),
        (STABLE, replace(STABLE, shape="sqrt"), 0.8),
        (STABLE, replace(STABLE, peak=2.0), 0.0),
        (STABLE, replace(STABLE, warmup=0.2), 0.0),
        (Constant(1.0), WSD(1.0, 1.0, 0.0, warmup=0.0), 0.8),
        (warmed(Constant(1), 0.1), warmed(WSD(1, 1, 0, warmup=0, decay=0.5), 0.1), 0.55),
        (Linear(1, 0), Linear(1, 0.5), 0.0),
        (Linear(1, 0), Spliced((0.5,), (Linear(1, 0), Constant(0))), 0.5),
        (Linear(1, 0), Until(Linear(1, 0), (0.5,), (3.0,)), 0.5),
        (Cosine(1, 0), Stages((0.5,), (Cosine(1, 0), Constant(0))), 0.0),
        (Step(1.0, 0.01, (0.5, 0.75)), Step(1.0, 0.1, (0.5,)), 0.75),
        (Step(1.0, 0.01, (0.5, 0.75)), Constant(1.0), 0.5),
        (HALF, EARLIER, 0.25),
        (Piecewise((0.5,), (0, 1, 0)), Piecewise((0.5,), (0, 1, 1)), 0.5),
        (Following(Constant(1), HALF, 1, 128), Following(Constant(1), EARLIER, 1, 128), 0.25),
        (Following(Linear(1, 0), HALF, 1, 128), Following(Linear(1, 0), EARLIER, 1, 128), 0.25),
        (Effective(Constant(1), Step(0.9, 0.5, (0.5,))), Constant(1.0 * (1.0 - 0.9)), 0.5),
        (Mirrored(STABLE, 0.8, 0.9), Mirrored(replace(STABLE, decay=0.5), 0.8, 0.9), 0.5),
        (Mirrored(STABLE, 0.8, 0.9), Mirrored(replace(STABLE, start=-1), 0.8, 0.9), 0.0),
    ],
)
def test_how_far_pairs_agree(a: Schedule, b: Schedule, until: float) -> None:
    assert agrees_until(a, b) == until


@pytest.mark.parametrize(
    ("changed", "until"),
    [
        ({}, 1.0),
        ({"lr": replace(STABLE, decay=0.5)}, 0.5),
        ({"lr": replace(STABLE, decay=0.5), "momentum": EARLIER}, 0.25),
        ({"lr": 1.0}, 0.0),
        ({"horizon": 21.0}, 0.0),
        ({"width": 8.0}, 0.0),
        ({"nested": {"a": [1, True]}}, 0.0),
        ({"more": 1}, 0.0),
        ({"momentum": Piecewise((0.5,), (128, 512), kind="constant")}, 0.0),  # needs more memory
    ],
)
def test_how_far_configurations_agree(changed: dict[str, Any], until: float) -> None:
    config = {"lr": STABLE, "momentum": HALF, "horizon": 20.0, "width": 8, "nested": {"a": [1, 1]}}
    assert configs_agree_until(config, {**config, **changed}) == until
    assert configs_agree_until({**config, **changed}, config) == until
