"""The report as a file: whole, safe, offline, and plotly's own schema for every plot in it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import made_studies as made
import numpy as np
import populations
import pytest
from sims import METRIC

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.errors import UserError
from autotune.evaluation.comparison import (
    CONFIRMED,
    Candidate,
    ComparedTarget,
    Comparison,
    Conditions,
    Run,
    compare,
    from_studies,
)
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.study.result import read
from autotune.trial import State, Target
from dashboards import report, tables, write_comparison, write_study
from dashboards.compared import comparison_page
from dashboards.page import render
from dashboards.sections import SECTIONS, sections

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><b>&amp;"
OPTIONS = StudyOptions(sampler="tpe")
MANIFEST = Manifest(
    name="toy",
    study_id="5eed",
    target=Target(METRIC, 0.9, limit=50.0),
    options=OPTIONS,
    versions={"torch": "2"},
)


class Seen(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


def html(result, manifest=MANIFEST) -> str:
    return render(report.study_page(result, manifest))


@pytest.mark.parametrize("result", [made.confirmed(), made.many(40)], ids=["confirmed", "search"])
def test_every_plot_is_one_that_plotly_knows(result) -> None:
    import plotly.graph_objects as go

    made_sections = sections(result, tables.leaderboard(result))
    assert len(made_sections) == 1 + len(SECTIONS) == 11
    drawn = [s for s in made_sections if s.figure is not None]
    for section in drawn:
        figure = go.Figure(json.loads(json.dumps(section.figure, allow_nan=False)))
        assert figure.data
        assert section.rows, f"{section.key} has no table"
        assert section.columns
        assert {k for row in section.rows for k in row} >= set(section.columns)
    missing = {s.key for s in made_sections if s.missing}
    assert missing == ({"importance", "slices", "parallel"} if len(result.trials) < 20 else set())


def test_every_section_is_reached_by_keyboard() -> None:
    seen = Seen(html(made.many(30)))
    links = [a["href"].lstrip("#") for a in seen.of("a")]
    keys = [s["id"] for s in seen.of("section")]
    assert links == ["content", *keys]
    plots = [d["data-figure"] for d in seen.of("div") if "data-figure" in d]
    assert plots == keys
    stops = [d for d in seen.of("div") if d.get("tabindex") == "0"]
    assert sum(d["aria-label"].startswith("Plot: ") for d in stops) == len(keys)
    assert len(seen.of("details")) == len(keys)
    assert seen.of("html") == [{"lang": "en"}]
    assert [b["id"] for b in seen.of("button")] == ["theme", "copy"]


def test_names_and_configurations_are_only_text() -> None:
    point = {EVIL: EVIL, "lr": 0.1}
    trials = [
        made.trial(i, 5.0 + i, point={**point, "lr": 0.1 * i, EVIL: f"{EVIL}{i % 2}"},
                   reason=EVIL, hardware=replace(made.HARDWARE, device=EVIL))
        for i in range(12)
    ]  # fmt: skip
    result = replace(made.study(*trials), target=replace(made.TARGET, metric="val_accuracy"))
    text = html(
        result,
        replace(MANIFEST, name=EVIL, options=StudyOptions(sampler=EVIL), versions={EVIL: EVIL}),
    )
    seen = Seen(text)
    kinds = [s.get("type") for s in seen.of("script")]
    assert kinds == ["application/json", "text/plain", None]
    assert seen.of("img") == []
    assert seen.of("b") == []
    assert not any(name.startswith("on") for _, attrs in seen.elements for name in attrs)
    embedded = re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)
    assert embedded
    assert "<" not in embedded[1]
    drawn = json.dumps(json.loads(embedded[1]))
    assert "&lt;script&gt;" in drawn
    assert "<script" not in drawn
    assert "<img" not in drawn


def test_it_needs_nothing_else_and_may_load_nothing() -> None:
    text = html(made.many(12))
    seen = Seen(text)
    assert not [a for tag, a in seen.elements if a.get("src")]
    assert [link["href"] for link in seen.of("link")] == ["data:,"]
    (policy,) = [m["content"] for m in seen.of("meta") if "content" in m and "http-equiv" in m]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "http" not in policy
    assert len(text) < 2_600_000


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [made.failed(0)],
        [made.trial(0, 3.0, State.RUNNING, ended_at=None, spent_seconds=0.0)],
        [made.trial(0, 3.0, State.CENSORED)],
        [made.trial(0, 3.0, kind="confirm"), made.trial(1, 4.0, kind="confirm")],
        [made.trial(0, 3.0, params=None)],
    ],
    ids=["empty", "failed", "running", "stopped", "replay", "given"],
)
def test_there_is_a_report_at_any_time(trials) -> None:
    seen = Seen(html(made.study(*trials)))
    assert len(seen.of("section")) == 11


@pytest.mark.slow
def test_thousands_of_trials_are_thinned_and_it_says_so(tmp_path: Path) -> None:
    result = made.many(3000)
    write_study(result, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert len(text) < 4_000_000
    assert "150 of 3,000 trials are drawn" in text
    assert "(3,000 rows, the first 300 of 3,000)" in text
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1])
    points = sum(len(t.get("x") or ()) for f in figures.values() for t in f["data"])
    assert 1_000 < points < 60_000


def wordy(config, seed, point):
    """As populations are trained; a report has more metrics than a page shows."""
    more = {"momentum": 0.9, "progress": 0.5, "train_loss": 1.0, "grad_norm": 2.0}
    points = populations.trained(config, seed, point).points
    return SimCurve([replace(p, metrics={**p.metrics, **more}) for p in points])


def test_only_the_metrics_that_a_page_shows_are_read(fast_path: Path) -> None:
    """A study of ten million points took gigabytes for its report."""
    pool = SimPool(lambda c, s: wordy(c, s, SimPoint(0, 0.0, {METRIC: 0.0})), 6, go_on=wordy)
    study = at.run(
        populations.experiment(), trials=12, controller="pbt", sampler="random",
        out=fast_path / "s", tracking_uri="off", pool=pool,
    )  # fmt: skip
    shown = {METRIC, *tables.METRICS}
    whole, few = (read(fast_path / "s", study.target, names) for names in (None, shown))
    assert whole.trials == study.trials
    assert any(t.origin is not None and t.origin.reports for t in whole.trials)
    for trial, less in zip(whole.trials, few.trials, strict=True):
        kept = [{k: v for k, v in r.metrics.items() if k in shown} for r in trial.reports]
        assert [dict(r.metrics) for r in less.reports] == kept
    assert {"momentum", "progress"} <= few.trials[1].reports[-1].metrics.keys()
    drawn, _ = report._read(fast_path / "s")
    compared = from_studies.read(fast_path / "s", "", "")
    assert drawn.trials == few.trials
    for trial in compared.trials:
        assert all(r.metrics.keys() == {METRIC} for r in trial.reports)
    write_study(whole, fast_path / "whole.html")
    write_study(fast_path / "s", fast_path / "few.html")
    assert (fast_path / "few.html").read_bytes() == (fast_path / "whole.html").read_bytes()


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*r\.html"):
        write_study(made.many(9), tmp_path / "file" / "r.html")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    with pytest.raises(UserError, match="not a study folder"):
        write_study(tmp_path, tmp_path / "r.html")


def test_the_figures_in_large_type() -> None:
    cards = {label: (value, more) for label, value, more in
             report.study_page(made.confirmed(), MANIFEST).cards}  # fmt: skip
    assert cards["time while tuning"] == ("5.00 s", "trial 1, one run")
    assert cards["confirmed time"] == ("8.00 s", "trial 1: median of 3 repeats, 7 to 10 s")
    assert cards["faster than the baseline"] == ("2.58 times", "confirmed means")


def test_intervals_come_from_the_comparison() -> None:
    runs = {
        number: tuple(Run(f"{number}:{i}", s, True, seed=i) for i, s in enumerate(times))
        for number, times in {0: (19.0, 21.0, 24.0), 1: (7.0, 8.0, 10.0)}.items()
    }
    candidates = [Candidate(f"s#{n}", "s", CONFIRMED, r, trial=n) for n, r in runs.items()]
    compared = compare(candidates, "s#0")
    cards = {c[0]: c[1:] for c in report.study_page(made.confirmed(), MANIFEST, compared).cards}
    known = compared.row("s#1")
    assert cards["faster than the baseline"][0] == f"{known.speedup:.3g} times"
    assert f"{known.speedup_interval.low:.3g}" in cards["faster than the baseline"][1]
    (best, *_) = tables.leaderboard(made.confirmed(), compared)
    assert best["speedup_high"] == known.speedup_interval.high


def compared() -> Comparison:
    rng = np.random.default_rng(0)
    target = Conditions("cpu", 2, False, "train", ComparedTarget("val_accuracy", 0.9))

    def candidate(name: str, middle: float, missed: int) -> Candidate:
        times = middle * np.exp(0.15 * rng.standard_normal(6))
        runs = tuple(
            Run(f"{name}:{i}", 60.0 if i < missed else float(s), i >= missed, seed=i,
                samples=100 * float(s), samples_per_second=100.0, curve=((0, 0, 0), (9, s, 0.9)))
            for i, s in enumerate(times)
        )  # fmt: skip
        return Candidate(name, EVIL, CONFIRMED, runs, target, tuning_seconds=middle)

    return compare([candidate("sgd", 30, 1), candidate("lars", 14, 0), candidate(EVIL, 35, 6)])


def test_the_report_of_a_comparison(tmp_path: Path) -> None:
    import plotly.graph_objects as go

    made_page = comparison_page(compared())
    for section in made_page.sections:
        if section.figure is not None:
            assert go.Figure(json.loads(json.dumps(section.figure, allow_nan=False))).data
    assert {s.key for s in made_page.sections if s.figure is not None} >= {
        "times", "speedup", "distribution", "why", "curves",
    }  # fmt: skip
    write_comparison(compared(), tmp_path / "c.html")
    seen = Seen((tmp_path / "c.html").read_text())
    assert [s.get("type") for s in seen.of("script")] == ["application/json", "text/plain", None]
    assert seen.of("img") == []
