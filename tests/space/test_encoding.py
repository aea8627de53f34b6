"""Positions of values in their ranges, and the allowed values nearest to a number."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from autotune.space.encoding import ABSENT, Encoder, nearest_value
from autotune.space.parameters import Choice, Float, Int
from autotune.space.search_space import SearchSpace


@given(st.floats(0.01, 2000))
def test_no_allowed_whole_number_is_nearer(real: float) -> None:
    for parameter in (Int(1, 9, step=3), Int(3, 11, step=5), Int(16, 512, power_of_two=True)):
        found = nearest_value(parameter, real)
        assert not parameter.check(found)
        allowed = [v for v in range(parameter.low, parameter.high + 1) if not parameter.check(v)]

        def away(value: float, by_log: bool = parameter.power_of_two) -> float:
            return abs(math.log(value / real)) if by_log else abs(value - real)

        assert away(found) <= min(map(away, allowed)) + 1e-9


@given(st.floats(-10, 10))
def test_a_number_outside_gets_an_end(real: float) -> None:
    assert isinstance(nearest_value(Float(0, 1), real), float)  # also where the end is written as 1
    assert nearest_value(Float(0.5, 2.0), real) == min(max(real, 0.5), 2.0)
    assert nearest_value(Int(1, 9, step=3), min(real, 0.0)) == 1


def test_points_are_rows_with_their_effective_rate_last() -> None:
    kinds = Choice(["sgd", "adam"])
    momentum = Float(0.5, 0.9, when={"optimizer": "sgd"})
    space = SearchSpace({"optimizer": kinds, "lr": Float(0.1, 1.0), "momentum": momentum})
    points = [{"optimizer": "sgd", "lr": 1.0, "momentum": 0.9}, {"optimizer": "adam", "lr": 0.1}]
    rows = Encoder(space).rows(points)
    assert rows.tolist() == [[1.0, 0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, ABSENT, ABSENT]]
    assert rows.dtype == float
    assert Encoder(space).rows([]).size == 0
