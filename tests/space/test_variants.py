"""Entries that give one key of the configuration under different conditions."""

from __future__ import annotations

import doctest
import re

import pytest

from autotune.schedules import Constant
from autotune.space import variants
from autotune.space.search_space import Choice, Fixed, Float, ScheduleSpace, SearchSpace

SGD, MUON = {"optimizer": "sgd"}, {"optimizer": "muon"}
SPACE = SearchSpace(
    {
        "optimizer": Choice(("sgd", "muon")),
        "lr:sgd": ScheduleSpace(Float(0.1, 1.0), family="constant", when=SGD),
        "lr:muon": ScheduleSpace(Float(0.001, 0.01), family="constant", when=MUON),
        "momentum:sgd": Float(0.7, 0.9, when=SGD),
        "nesterov:sgd": Fixed(True, when=SGD),
        "a:b": Fixed(1),
    }
)


def test_each_condition_has_a_range_of_its_own_for_one_key() -> None:
    for point in SPACE.sample(20):
        config = SPACE.config(point)
        own = config.pop("optimizer")
        lr = config.pop("lr")
        assert lr(0.5) == point[f"lr:{own}.peak"]
        assert (lr(0.5) >= 0.1) == (own == "sgd")
        rest = {"momentum": point["momentum:sgd"], "nesterov": True} if own == "sgd" else {}
        assert config == {**rest, "a:b": 1}
        assert SPACE.check(point) == point


def test_a_point_and_a_configuration_are_completed() -> None:
    point = {"optimizer": "muon", "lr:muon.peak": 0.002}
    config = {"optimizer": "muon", "lr": Constant(0.002), "a:b": 1}
    assert SPACE.complete(point) == (config, point)
    assert SPACE.complete({"optimizer": "muon", "lr": 0.5}) == (
        {"optimizer": "muon", "lr": Constant(0.5), "a:b": 1},
        None,
    )
    with pytest.raises(ValueError, match=r"lr:sgd\.peak is given but exists only when"):
        SPACE.check({**point, "lr:sgd.peak": 0.5})


@pytest.mark.parametrize(
    ("name", "entry", "said"),
    [
        ("lr", Float(0, 1), "lr:sgd and lr both give 'lr': their conditions must exclude each"),
        ("seed:sgd", Float(0, 1, when=SGD), "'seed' is reserved"),
        ("microbatch:sgd", Choice((1, 2), when=SGD), "may be Fixed only"),
    ],
)
def test_entries_that_could_both_exist_are_refused(name: str, entry: object, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        SearchSpace({**SPACE.entries, name: entry})  # type: ignore[dict-item]


def test_the_examples_hold() -> None:
    assert doctest.testmod(variants).failed == 0
