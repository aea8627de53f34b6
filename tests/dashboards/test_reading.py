"""What a report does for its reader: it refreshes, can be copied from, and is brief."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from html import unescape
from pathlib import Path

import made_studies as made
from sims import racing, simulate

from autotune.storage.journal import Journal
from autotune.study.result import StudyResult
from autotune.trial import State, Target
from dashboards import report, tables
from dashboards.page import Section, render


def section(result: StudyResult, key: str) -> Section:
    return next(s for s in report.study_page(result, None).sections if s.key == key)


def test_a_running_study_refreshes_its_page_and_no_other_does(fast_path: Path) -> None:
    simulate(racing([1.0, 0.5]), fast_path, 2)
    lines = (fast_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (fast_path / "journal.jsonl").write_bytes(b"".join(lines[:-1]))  # not closed
    assert 'data-refresh="0"' in report.study_html(fast_path), "its driver was killed"
    with Journal(fast_path):
        assert 'data-refresh="30"' in report.study_html(fast_path)


def test_the_best_configuration_can_be_copied() -> None:
    result = made.study(made.trial(0, 3.0, point={"lr": 0.1, "name": "<b>&"}))
    page = report.study_page(result, None)
    assert json.loads(page.config)["name"] == "<b>&"
    assert page.config in unescape(render(page))
    assert "<b>&" not in render(page)
    assert 'id="copy"' not in render(report.study_page(made.study(), None))


def test_knobs_that_are_the_same_everywhere_are_left_out() -> None:
    found = section(made.many(10), "schedules")
    assert found.figure is not None
    titles = {a["title"]["text"] for k, a in found.figure["layout"].items() if "yaxis" in k}
    assert titles - {""} == {"lr"}
    assert "batch_size 32" in found.thinned
    still = [replace(made.trial(0, 3.0), reports=made.trial(0, 3.0).reports[:1])]
    found = section(made.study(*still), "schedules")
    assert found.missing.startswith("No knob changed: lr 0.1, batch_size 32")


def test_it_says_when_no_parameter_stands_out() -> None:
    rng = random.Random(0)
    chance = [
        made.trial(n, rng.uniform(3, 9), point={"a": rng.random(), "b": rng.random()})
        for n in range(40)
    ]
    for result, stands_out in ((made.study(*chance), False), (made.many(60), True)):
        found = section(result, "importance")
        assert found.text.startswith("No parameter stands out") is not stands_out


def drawn(found: Section) -> int:
    """How many marks or bars of the plot have a place."""
    assert found.figure is not None
    return sum(y is not None for trace in found.figure["data"] for y in trace["y"])


def without_value() -> StudyResult:
    """Trials that completed or were stopped, of a study for the best metric."""
    made_trials = [
        made.trial(n, 5.0 + n, State.CENSORED if n % 3 == 0 else State.COMPLETED,
                   point={"lr": 0.1 * (n + 1), "size": n})
        for n in range(12)
    ]  # fmt: skip
    return replace(made.study(*made_trials), target=Target("val_accuracy", limit=50.0))


def test_every_state_has_its_bars_in_the_timeline() -> None:
    states = [State.REACHED, *(s for s in State if s is not State.REACHED)]
    result = made.study(*(made.trial(n, 3.0, state) for n, state in enumerate(states)))
    assert drawn(section(result, "timeline")) == len(State)


def test_a_study_without_a_value_is_told_of_no_target() -> None:
    result = without_value()
    page = report.study_page(result, None)
    for own in page.sections:
        assert "reached the target" not in own.text
        assert "to target" not in own.text
    assert drawn(section(result, "timeline")) == 12


def test_where_nobody_reached_the_target_the_best_metric_is_shown() -> None:
    point = {"lr": 0.1, "size": 1}
    late = [
        made.trial(n, 50.0, State.CENSORED, point={**point, "lr": 0.1 * (n + 1)}, reason="limit")
        for n in range(12)
    ]
    result = made.study(*late)
    assert section(result, "leaderboard").text.startswith("No trial has reached the target")
    for key in ("progress", "slices", "parallel", "importance"):
        found = section(result, key)
        assert "best val_accuracy" in json.dumps(found.figure) or key == "importance", key
        assert drawn(found), key
        assert found.text.startswith("No trial has reached the target"), key
    stopped = made.study(made.trial(0, 3.0, State.CENSORED))
    assert section(stopped, "progress").missing == "No trial has come to its end yet."


def test_numbers_are_written_as_people_write_them() -> None:
    shown = [tables.brief(v) for v in (48371.4, 0.000123456, 3.0, 12_000, 1e7, 2.5e9, True, None)]
    assert shown == ["48,371", "0.0001235", "3", "12,000", "1e+07", "2.5e+09", "True", "-"]


def test_columns_without_any_content_are_left_out() -> None:
    heads = section(made.many(10), "leaderboard").columns
    assert "ratio" not in heads, "there is no baseline"
    assert "ratio" in section(made.confirmed(), "leaderboard").columns
