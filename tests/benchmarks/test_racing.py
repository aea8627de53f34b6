"""The simulated searches in which configurations are run again."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.mark.parametrize("trials", [None, 8])
def test_finalists_are_confirmed_after_the_search_also_after_its_time(
    trials: int | None, script: Callable[[str], ModuleType]
) -> None:
    racing = script("racing")
    problem = racing.misses(0.12, 30.0, racing.BASELINES["good"])
    found = racing.study(problem, 1, 0.3, "auto", 1.5, trials, confirm=2)
    assert 0 in found["confirmed"]
    assert set(found["confirmed"].values()) == {2}
    assert racing.study(problem, 1, 0.3, "auto", 1.5, trials)["confirmed"] == {}
