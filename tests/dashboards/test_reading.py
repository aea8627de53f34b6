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
from dashboards import report
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
