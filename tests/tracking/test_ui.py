"""MLflow's UI as a person uses it: the study's runs and its report, in Chromium."""

from __future__ import annotations

import subprocess
import time

import pytest
from browser import Browser, needs_browser
from heads import free_ports

from autotune.cli import mlflow_ui
from autotune.tracking.mirror import environment, ui_command
from autotune.trial import State
from dashboards import write_study

_OWN = "mlflow/users/current"  # what MLflow's own page asks for in vain where nobody logs in
_NAMES = """[...document.querySelectorAll('a')].map(a => a.textContent)
    .filter(t => /^trial-\\d+$/.test(t)).join(' ')"""


def served(study, processes) -> list[str]:
    """The addresses of the study's runs and of its report."""
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
            return mlflow_ui.addresses(host, "digits", "5eed" * 8)
        except (OSError, KeyError, IndexError):
            assert time.monotonic() < deadline, (study.path / "ui.log").read_text()
            time.sleep(0.5)


@needs_browser
@pytest.mark.slow
def test_runs_are_nested_and_sorted_and_the_report_is_shown(study, processes) -> None:
    study.trial(0, 3.0, kind="baseline")
    study.trial(1, 1.0)
    study.trial(2, 2.0)
    study.begin(3)
    study.report(3, [0, 100])
    study.end(3, State.CENSORED, "capped", 1.5)
    study.close()
    study.copier(report=lambda folder, file: write_study(folder, file)).catch_up(over=True)
    runs, report = (line.partition(": ")[2] for line in served(study, processes))
    with Browser() as browser:
        browser.size(1500, 1000)
        browser.open(runs.partition("?")[0])
        browser.until("document.body.innerText.includes('5 matching runs')")
        assert browser.says(_NAMES) == "", "trials are within the study's run"
        browser.open("about:blank")
        browser.open(runs)
        wanted = "trial-0001 trial-0002 trial-0000 trial-0003"
        assert browser.until(f"({_NAMES}) === '{wanted}'"), "the leaderboard"
        browser.open("about:blank")
        browser.open(report)
        browser.until("document.querySelector('iframe') !== null")
        (frame,) = browser.frames()
        browser.until("document.querySelectorAll('.main-svg').length > 0", frame=frame)
        assert browser.says("document.querySelector('h1').textContent", frame) == "digits"
        browser.says("document.querySelector('a[href=\"#clock\"]').click()", frame)
        browser.until("document.querySelector('#clock .main-svg') !== null", frame=frame)
        assert [e for e in browser.errors if _OWN not in e] == []
