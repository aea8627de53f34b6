"""The table of all families of schedules: how to make any of each, and what it claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from autotune.schedules import (
    WSD,
    Constant,
    Cosine,
    Effective,
    Exponential,
    Following,
    InverseSqrt,
    Linear,
    LinearCosine,
    Mirrored,
    OneCycle,
    Piecewise,
    Polynomial,
    Schedule,
    Shape,
    Spliced,
    Stages,
    Step,
    Until,
    extremes,
)

quick = settings(max_examples=25, deadline=None)

values = st.floats(-1e3, 1e3) | st.integers(-512, 512)
above_zero = st.floats(1e-2, 1e2) | st.integers(1, 512)
shapes = st.sampled_from(get_args(Shape))
progresses = st.floats(0.0, 1.0)


def edges(least: int = 0, most: int = 4) -> st.SearchStrategy[tuple[float, ...]]:
    hundredths = st.lists(st.integers(1, 99), min_size=least, max_size=most, unique=True)
    return hundredths.map(lambda chosen: tuple(edge / 100 for edge in sorted(chosen)))


def with_edges(
    make: Callable[[tuple[float, ...], tuple[Any, ...]], Any], item: Any, more: int
) -> Any:
    def of(chosen: tuple[float, ...]) -> Any:
        count = len(chosen) + more
        items = st.lists(item, min_size=count, max_size=count)
        return items.map(lambda given_items: make(chosen, tuple(given_items)))

    return edges().flatmap(of)


@dataclass(frozen=True)
class Case:
    some: st.SearchStrategy[Schedule]
    monotone: bool = False
    continuous: bool = False
    composed: bool = False


def step_curve(chosen: tuple[float, ...], items: tuple[float, ...]) -> Piecewise:
    return Piecewise(chosen, items, kind="constant")


percents = st.integers(1, 50).map(lambda percent: percent / 100)
CASES = {
    Constant: Case(st.builds(Constant, values), True, True),
    Linear: Case(st.builds(Linear, values, values), True, True),
    Cosine: Case(st.builds(Cosine, values, values), True, True),
    LinearCosine: Case(st.builds(LinearCosine, values, values), True, True),
    Polynomial: Case(st.builds(Polynomial, values, values, st.floats(0.5, 4.0)), True, True),
    Exponential: Case(st.builds(Exponential, above_zero, above_zero), True, True),
    InverseSqrt: Case(st.builds(InverseSqrt, *2 * (st.floats(0.1, 100.0),)), True, True),
    Step: Case(st.builds(Step, above_zero, above_zero, edges(least=1)), monotone=True),
    OneCycle: Case(
        st.builds(OneCycle, values, values, values, st.floats(0.01, 0.99), shapes), continuous=True
    ),
    WSD: Case(
        st.builds(WSD, values, values, values, st.just(0.0) | percents, percents, shapes),
        continuous=True,
    ),
    Piecewise: Case(with_edges(Piecewise, values, 2) | with_edges(step_curve, values, 1)),
}
leaves = st.one_of([case.some for case in CASES.values()])
trees = with_edges(Stages, leaves, 1)
positive = st.one_of(
    st.builds(Constant, above_zero),
    st.builds(Cosine, above_zero, above_zero),
    CASES[Step].some,
    with_edges(step_curve, above_zero, 1),
    with_edges(Stages, st.builds(Linear, above_zero, above_zero), 1),
)
below_one = st.floats(0.0, 0.99)
bands = st.tuples(values, values).map(sorted)
momenta = st.one_of(
    st.builds(OneCycle, below_one, below_one, below_one),
    with_edges(step_curve, below_one, 1),
    st.builds(Mirrored, trees, st.just(0.85), st.just(0.95)),
)
CASES[Following] = Case(
    st.builds(Following, leaves | trees, positive, st.floats(-2.0, 2.0), above_zero),
    composed=True,
)
CASES[Mirrored] = Case(
    st.builds(lambda of, band: Mirrored(of, *band), leaves | trees | CASES[Following].some, bands),
    composed=True,
)
CASES[Effective] = Case(st.builds(Effective, leaves | trees, momenta), composed=True)
CASES[Until] = Case(
    st.builds(
        lambda base, stairs: Until(base, stairs.edges, stairs.values[1:]),
        leaves | trees,
        edges(least=1).flatmap(
            lambda chosen: st.lists(values, min_size=len(chosen), max_size=len(chosen)).map(
                lambda items: step_curve(chosen, (0, *items))
            )
        ),
    ),
    composed=True,
)
CASES[Spliced] = Case(with_edges(Spliced, leaves | trees, 1), composed=True)
made = st.one_of([CASES[kind].some for kind in (Following, Mirrored, Effective, Until, Spliced)])
CASES[Stages] = Case(
    st.recursive(leaves | made, lambda some: with_edges(Stages, some, 1), max_leaves=6).map(
        lambda some: some if isinstance(some, Stages) else Stages((), (some,))
    ),
    composed=True,
)
every = pytest.mark.parametrize("case", CASES.values(), ids=[kind.__name__ for kind in CASES])


def largest_of(schedule: Schedule) -> float:
    """The greatest of its values, by their amount."""
    return max(map(abs, extremes(schedule)))


def is_product(schedule: Schedule) -> bool:
    """Whether something is in it whose extremes are only looked for."""
    if isinstance(schedule, Following | Effective | Spliced):
        return True
    if isinstance(schedule, Stages):
        return any(map(is_product, schedule.parts))
    if isinstance(schedule, Until):
        return is_product(schedule.base)
    return isinstance(schedule, Mirrored) and is_product(schedule.of)


def first_of(schedule: Schedule) -> float:
    """Its value at 0, from its fields."""
    return _end_of(schedule, 0)


def last_of(schedule: Schedule) -> float:
    """Its value at 1, from its fields."""
    return _end_of(schedule, -1)


def _end_of(schedule: Any, end: int) -> float:
    match schedule:
        case Stages(parts=parts) | Spliced(parts=parts):
            return _end_of(parts[end], end)
        case Following(base, other, power, reference):
            return _end_of(base, end) * math.pow(_end_of(other, end) / reference, power)
        case Effective(base, momentum):
            return _end_of(base, end) * (1.0 - _end_of(momentum, end))
        case Until(base, _, own):
            return _end_of(base, end) if end == 0 else own[-1]
        case Mirrored(of, low, high):
            least, most = extremes(of)
            share = (_end_of(of, end) - least) / (most - least) if least < most else 1.0
            return low + (high - low) * (1.0 - share)
        case WSD(peak=peak, warmup=0.0) if end == 0:
            return peak
        case Piecewise(values=own):
            return own[end]
        case Constant(value=value):
            return value
    return schedule.start if end == 0 else schedule.end
