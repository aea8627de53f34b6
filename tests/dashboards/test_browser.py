"""The report as a person sees it: in Chromium, on a desk and on a phone, by keyboard, in MLflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import made_studies as made
import pytest
from browser import Browser, needs_browser
from sims import racing, simulate

from autotune.evaluation.comparison.metrics import MetricComparison, MetricRow
from autotune.evaluation.comparison.sources import confirmed as comparison
from autotune.schedules import Cosine
from autotune.storage.journal import Journal
from autotune.study.result import StudyResult
from autotune.trial import State, Target
from dashboards import write_comparison, write_study

pytestmark = needs_browser
DRAWN = "[...document.querySelectorAll('[data-figure]')].filter(b => b.querySelector('.main-svg'))"

_HIDDEN = """window.shown = 'hidden';
    Object.defineProperty(document, 'visibilityState', {get: () => window.shown})"""
_EMPTY = """[...document.querySelectorAll('[data-figure]')]
    .filter(b => !b.querySelector('.point, .points path, .scatterlayer path, .barlayer path'))
    .map(b => b.closest('section').id)"""
_WIDER = """[...document.querySelectorAll('[data-figure]')].map(b => b.parentElement)
    .filter(b => b.scrollWidth > b.clientWidth).map(b => b.closest('section').id)"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_study(made.many(60), path)
    return path


def _without_value() -> StudyResult:
    states = {State.REACHED: State.COMPLETED}
    trials = [replace(t, state=states.get(t.state, t.state)) for t in made.many(24).trials]
    return replace(made.study(*trials), target=Target("val_accuracy", limit=50.0))


def _unreached() -> StudyResult:
    target = replace(made.TARGET, value=0.99)
    trials = [replace(t, state=State.CENSORED, reason="limit") for t in made.many(24).trials]
    return replace(made.study(*trials), target=target)


@pytest.mark.parametrize("study", [_without_value, _unreached])
@pytest.mark.slow
def test_reports_of_other_studies_fit_and_no_plot_is_empty(
    study: Callable[[], StudyResult], tmp_path: Path
) -> None:
    write_study(study(), tmp_path / "report.html")
    with Browser() as browser:
        for width, phone in ((390, True), (1280, False)):
            browser.size(width, 14000, phone=phone)
            browser.open(tmp_path / "report.html")
            browser.until(f"{DRAWN}.length === document.querySelectorAll('[data-figure]').length")
            assert browser.says("document.documentElement.scrollWidth") <= width
            assert browser.says(_WIDER) == []
            assert browser.says(_EMPTY) == []
            assert browser.errors == []


@pytest.mark.parametrize(
    ("width", "height", "phone", "dark"),
    [
        pytest.param(1280, 9000, False, False, id="desktop light", marks=pytest.mark.slow),
        pytest.param(390, 12000, True, True, id="phone dark"),
    ],
)
def test_every_plot_is_drawn(file: Path, width: int, height: int, phone: bool, dark: bool) -> None:
    with Browser() as browser:
        browser.size(width, height, phone=phone, dark=dark)
        browser.open(file)
        browser.until(f"{DRAWN}.length === 11")
        assert browser.says("document.documentElement.scrollWidth") <= width
        assert browser.says(_WIDER) == [], "no plot is wider than the page"
        assert browser.says("document.documentElement.dataset.theme") == (
            "dark" if dark else "light"
        )
        browser.says("document.getElementById('theme').click()")
        other = "light" if dark else "dark"
        assert browser.says("document.documentElement.dataset.theme") == other
        ink = browser.says("getComputedStyle(document.querySelector('.xtick text')).fill")
        assert ink == ("rgb(20, 24, 29)" if dark else "rgb(233, 237, 241)")
        assert browser.errors == []


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose winners are confirmed, with ten searched parameters."""
    names = (
        "momentum",
        "weight_decay",
        "trust",
        "warmup",
        "label_smoothing",
        "horizon",
        "nesterov",
    )
    point = {"lr": 0.1234, "batch_size": 256, **dict.fromkeys(names, 0.1234)}
    known = made.confirmed()
    trials = [
        replace(t, config={**point, "schedule": Cosine(0.4, 0.0)}, params=point)
        for t in known.trials
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_study(made.study(*trials), path)
    return path


@pytest.mark.slow
def test_the_leaderboard_fits_a_desk_and_all_is_reached_by_keyboard(confirmed: Path) -> None:
    table = "document.querySelector('#leaderboard table')"
    stop = "document.activeElement.closest('section')?.id + ' ' + document.activeElement.className"
    plot = "document.activeElement.querySelector(':scope > [data-figure]')"
    with Browser() as browser:
        for width in (1440, 1200):
            browser.size(width, 900)
            browser.open(confirmed)
            browser.until(f"{DRAWN}.length > 0")
            box = f"{table}.parentElement"
            assert browser.says(f"{box}.scrollWidth - {box}.clientWidth") == 0
            heads = browser.says(f"[...{table}.querySelectorAll('th')].map(h => h.textContent)")
            assert "confirmed (s), range" in heads
            assert heads[-1] == "configuration"
            cells = browser.says(f"[...{table}.rows[1].cells].map(c => c.textContent)")
            assert "8 (7 to 10; 3 of 3)" in cells
            assert browser.says("document.documentElement.scrollWidth") <= width
            bar = "document.querySelector('nav')"
            assert browser.says(f"{bar}.scrollWidth - {bar}.clientWidth") == 0, "all links are seen"
        plots = browser.says(
            "[...document.querySelectorAll('[data-figure]')].map(b => b.closest('section').id)"
        )
        assert len(plots) == 8, "little is searched here: nothing of what decides"
        wanted = {f"{name} scroll" for name in plots}
        for _ in range(120):
            browser.press("Tab")
            wanted.discard(browser.says(stop))
            browser.until(f"!{plot} || {plot}.querySelector('.main-svg') !== null")
            if not wanted:
                break
        assert not wanted
        assert browser.says(f"{DRAWN}.length") == len(plots), "what is reached is drawn"
        assert browser.errors == []


@pytest.mark.slow
def test_plots_are_drawn_when_they_are_near_and_reached_by_keyboard(file: Path) -> None:
    with Browser() as browser:
        browser.size(1280, 700)
        browser.open(file)
        browser.until(f"{DRAWN}.length > 0")
        assert browser.says(f"{DRAWN}.length") < 11
        browser.press("Tab")  # skip to the results
        assert browser.says("document.activeElement.className") == "skip"
        for _ in range(14):  # theme, copy, the links of 11 sections and one more: the first plot
            browser.press("Tab")
        assert browser.says("document.activeElement.getAttribute('aria-label')").startswith("Plot:")
        browser.says("document.querySelector('a[href=\"#throughput\"]').focus()")
        browser.press("Enter")
        browser.until("document.querySelector('#throughput .main-svg') !== null")
        assert browser.says("document.activeElement.closest('section').id") == "throughput"
        assert browser.errors == []


@pytest.mark.slow
def test_a_comparison_fits_a_phone(tmp_path: Path) -> None:
    times = comparison(made.confirmed(), None)
    assert times is not None
    ends = (0.93, 0.97)
    rows = (
        MetricRow("a-study-with-a-long-name#7", "confirmed", 3, 0.95, ends, 0.02, None, 80.0),
        MetricRow("b#0", "tuning", 1, 0.93, None, None, None, 80.0),
    )
    target = Target("val_accuracy", limit=10)
    with Browser() as browser:
        browser.size(390, 6000, phone=True)
        for found in (times, MetricComparison(target, "b#0", rows)):
            write_comparison(found, tmp_path / "compared.html")
            browser.open(tmp_path / "compared.html")
            browser.until(f"{DRAWN}.length === document.querySelectorAll('[data-figure]').length")
            assert browser.says(f"{DRAWN}.length") > 0
            assert browser.says("document.documentElement.scrollWidth") <= 390
            assert browser.says(_WIDER) == []
            assert browser.errors == []


def test_a_running_study_is_read_again_and_its_best_configuration_is_copied(
    fast_path: Path,
) -> None:
    simulate(racing([1.0, 0.5, 0.25]), fast_path, 3)
    place, page = fast_path / "journal.jsonl", fast_path / "report.html"
    lines = place.read_bytes().splitlines(keepends=True)
    place.write_bytes(b"".join(lines[:-1]))  # not closed
    with Journal(fast_path), Browser() as browser:
        write_study(fast_path, page)
        page.write_text(page.read_text().replace('data-refresh="30"', 'data-refresh="2"'))
        browser.size(390, 900, phone=True)
        browser.ask("Page.addScriptToEvaluateOnNewDocument", source=_HIDDEN)
        browser.open(page)
        browser.until(f"{DRAWN}.length > 0")
        browser.says("document.getElementById('copy').focus()")
        browser.press("Enter")
        said = browser.until("document.getElementById('copied').textContent")
        assert said == "Copied."
        browser.says("document.getElementById('theme').click(); window.scrollTo(0, 500)")
        theme = browser.says("document.documentElement.dataset.theme")
        page.write_text(page.read_text().replace("<h1>racing", "<h1>racing again"))
        browser.says("window.shown = 'visible'")
        browser.until("document.querySelector('h1')?.textContent === 'racing again'")
        browser.until(f"document.documentElement.dataset.theme === '{theme}'")
        browser.until("window.scrollY === 500")
        assert browser.errors == []
