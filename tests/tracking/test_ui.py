"""MLflow's UI as a person uses it: the study's runs and its report, in Chromium."""

from __future__ import annotations

import subprocess
import time

import pytest
from browser import Browser, needs_browser
from heads import free_ports

from autotune.cli import mlflow_ui
from autotune.tracking.mirror import environment, ui_command
from autotune.trial import State, Target
from dashboards import write_study

# What MLflow's own page asks for in vain where nobody logs in, and its scripts' complaints while
# they draw charts whose size is not known yet, or whose size changes faster than a busy browser
# draws. The report uses none of these, and no ResizeObserver.
_OWN = ("mlflow/users/current", "/static-files/static/js/", "ResizeObserver loop completed")
_NAMES = """[...document.querySelectorAll('a')].map(a => a.textContent)
    .filter(t => /^(trial-\\d+|baseline)$/.test(t)).join(' ')"""
_HEADS = """[...document.querySelectorAll('.ag-header-cell')]
    .sort((a, b) => a.getBoundingClientRect().left - b.getBoundingClientRect().left)
    .map(h => h.getAttribute('col-id')).filter(id => /`/.test(id)).join(' ')"""
_POINT = {"lr.peak": 0.4, "lr.family": "cosine", "lr.final": 0.0, "batch_size": 32}


def served(study, processes) -> list[str]:
    """The addresses of the study's leaderboard, its charts and its report."""
    (port,) = free_ports(1)  # 5000 is also the first choice of a test beside this one
    command = ui_command(study.path, port)
    log = (study.path / "ui.log").open("wb")
    processes.append(
        subprocess.Popen(command, env=environment(), stdout=log, stderr=log, start_new_session=True)
    )
    host = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 600
    while True:
        try:
            return mlflow_ui.addresses(host, "digits", "5eed" * 8, Target("acc", 0.9, limit=9))
        except (OSError, KeyError, IndexError):
            assert time.monotonic() < deadline, (study.path / "ui.log").read_text()
            time.sleep(0.5)


@needs_browser
@pytest.mark.slow
def test_the_leaderboard_its_charts_and_the_report_are_shown(study, processes) -> None:
    study.trial(0, 3.0, kind="baseline")
    study.trial(1, 1.0, point=_POINT)
    study.trial(2, 2.0, point={**_POINT, "lr.peak": 0.2, "batch_size": 64})
    study.begin(3, point={**_POINT, "lr.peak": 0.1, "lr.family": "linear"})
    study.report(3, [0, 100])
    study.end(3, State.CENSORED, "capped", 1.5)
    study.trial(4, 1.2, kind="confirm", of=1)
    study.close()
    study.copier(report=lambda folder, file: write_study(folder, file)).catch_up(over=True)
    runs, charts, report = (line.partition(": ")[2] for line in served(study, processes))
    with Browser() as browser:
        browser.size(1500, 1000)
        browser.open(runs.partition("?")[0])
        browser.until("document.body.innerText.includes('6 matching runs')")
        assert browser.says(_NAMES) == "", "trials are within the study's run"
        browser.open("about:blank")
        browser.open(runs)
        wanted = "trial-0001 trial-0002 baseline trial-0003"
        assert browser.until(f"({_NAMES}) === '{wanted}'"), "the leaderboard"
        columns = ("tags.`autotune.state`", "metrics.`time_to_target_seconds`",
                   "metrics.`confirmed_mean_seconds`", "params.`lr.peak`",
                   "params.`batch_size`")  # fmt: skip
        browser.size(2400, 1000)  # what does not fit is not made
        heads = " ".join(["attributes.`Run Name`", *columns])
        browser.until(f"{_HEADS} === '{heads}'")
        browser.open("about:blank")
        browser.size(1280, 2400)  # what is not seen is not drawn
        browser.open(charts)
        for title in (
            "lr.peak vs. time_to_target_seconds",
            "Parallel Coordinates",
            "train_seconds",
        ):
            browser.until(f"document.body.innerText.includes('{title}')")
        browser.until("document.querySelectorAll('.js-plotly-plot').length === 3")
        narrow = "[...document.querySelectorAll('.js-plotly-plot')].map(p => p.clientWidth)"
        browser.until(f"Math.min(...{narrow}) >= 250")
        browser.open("about:blank")
        browser.open(report)
        browser.until("document.querySelector('iframe') !== null")
        menu = browser.says("document.body.innerText")
        assert "Evaluation runs" not in menu, "not in the part for chats and their traces"
        (frame,) = browser.frames()
        browser.until("document.querySelectorAll('.main-svg').length > 0", frame=frame)
        assert browser.says("document.querySelector('h1').textContent", frame) == "digits"
        browser.says("document.querySelector('a[href=\"#clock\"]').click()", frame)
        browser.until("document.querySelector('#clock .main-svg') !== null", frame=frame)
        assert [e for e in browser.errors if not any(own in e for own in _OWN)] == []
