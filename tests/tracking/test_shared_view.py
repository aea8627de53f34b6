"""The view with which MLflow opens a study, for what is searched and what is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.tracking.shared_view import varied, view_state
from autotune.trial import Target, Trial

POINTS = [
    {"lr.peak": 0.4, "lr.family": "cosine", "only": 1},
    {"lr.peak": 0.2, "lr.family": "cosine"},
]


def state(target: Target, points: list[dict[str, Any]], **config: Any) -> dict[str, Any]:
    trials = [Trial(n, config, params=p) for n, p in enumerate(points)]
    return view_state("5eed" * 8, target, trials, str, str)


@pytest.mark.parametrize(
    ("target", "ranked", "ascending", "confirmed"),
    [
        (Target("acc", 0.9, limit=9), "time_to_target_seconds", True, "confirmed_mean_seconds"),
        (Target("acc", limit=9), "best_acc", False, "confirmed_mean_acc"),
        (Target("loss", mode="min", limit=9), "best_loss", True, "confirmed_mean_loss"),
    ],
)
def test_it_is_sorted_by_what_the_target_asks_for(
    target: Target, ranked: str, ascending: bool, confirmed: str
) -> None:
    found = state(target, POINTS, batch_size=32)
    assert (found["orderByKey"], found["orderByAsc"]) == (f"metrics.`{ranked}`", ascending)
    assert found["selectedColumns"] == [
        "tags.`autotune.state`",
        f"metrics.`{ranked}`",
        f"metrics.`{confirmed}`",
        "params.`lr.peak`",
        "params.`batch_size`",
    ]
    widths = [found["columnWidths"][column] for column in found["selectedColumns"]]
    assert all(95 <= width <= 180 for width in widths)
    first = found["compareRunSections"][0]
    assert (first["uuid"], first["columns"]) == (found["compareRunCharts"][0]["metricSectionId"], 1)
    charts = {chart["type"]: chart for chart in found["compareRunCharts"]}
    assert list(charts) == ["LINE", "SCATTER", "PARALLEL"], "one number is searched: no contour"
    assert charts["SCATTER"]["yaxis"] == {"key": ranked, "type": "METRIC"}


@pytest.mark.parametrize(("clock", "over"), [("train", "metric"), ("steps", "step")])
def test_the_metric_is_drawn_over_what_the_clock_counts(clock: str, over: str) -> None:
    limit = {"limit_steps": 100} if clock == "steps" else {"limit": 9}
    line = state(Target("acc", 0.9, clock=clock, **limit), [])["compareRunCharts"][0]
    seconds = "train_seconds" if over == "metric" else ""
    assert (line["xAxisKey"], line["selectedXAxisMetricKey"]) == (over, seconds)


def test_what_every_point_has_and_differs_is_plotted() -> None:
    assert varied(POINTS) == ["lr.peak"]
    assert varied(POINTS[:1]) == list(POINTS[0]), "so far"
    assert varied([]) == []
    assert [c["type"] for c in state(Target("acc", limit=9), [])["compareRunCharts"]] == ["LINE"]
