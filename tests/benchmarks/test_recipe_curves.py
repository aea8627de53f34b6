"""Searches on recorded curves of a recipe."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autotune.study import recipes

RECIPE = "search_spaces.digits:optimizers"


@pytest.fixture
def curves(script: Callable[[str], ModuleType], tmp_path: Path) -> Any:
    """Sixty random points: those with an even number reach the target, the first one soonest."""
    space = recipes.load(RECIPE).space
    rows = [
        {"point": p, "curve": [[1.0, 0.5], [2.0 + i, 0.99 - i % 2 / 10]], "reached": i % 2 == 0}
        for i, p in enumerate(space.sample(60, seed=3))
    ]
    (tmp_path / "known").mkdir()
    return script("recipe_curves").Curves(RECIPE, rows, tmp_path / "known")


def test_a_configuration_has_the_point_that_it_was_made_from(curves: Any) -> None:
    space = curves.experiment.space
    for point in space.sample(30, seed=5):
        assert curves.point(space.config(point)) == pytest.approx(point)


def test_the_nearest_curve_stands_for_a_configuration(curves: Any) -> None:
    for own in curves.of.values():
        for row in own:
            assert curves.nearest(row["point"]) == [row]
            end = row["curve"][-1][0] if row["reached"] else 30.0
            assert curves.worth(row["point"]) == end


def test_a_run_that_missed_the_target_goes_on_without_it(curves: Any) -> None:
    missed = next(row for own in curves.of.values() for row in own if not row["reached"])
    run = curves.run(missed["point"], seed=1)
    assert run[-1][0] >= 30.0
    assert max(value for _, value in run) < curves.target.value


@pytest.mark.parametrize(
    "row",
    ["autotune, no races", "autotune, policy, no races", "random, asha, no races", "Ray Tune"],
)
def test_a_search_ends_with_a_recorded_time(
    row: str, curves: Any, script: Callable[[str], ModuleType]
) -> None:
    found = script("recipe_curves").ROWS[row](curves, 0, 40.0)
    assert found == script("recipe_curves").ROWS[row](curves, 0, 40.0)
    worths = {curves.worth(r["point"]) for own in curves.of.values() for r in own}
    assert found["worth"] in worths
    assert found["found"] <= found["worth"] < math.inf
    assert found["trials"] >= 2
