"""How long MLflow's UI takes with a study of hundreds of trials.

    python benchmarks/mlflow_ui.py [--trials 300] [--repeats 3] [--json FILE]
    python benchmarks/mlflow_ui.py --study studies/demo --pictures docs/images     # of the docs

A study folder is written as a driver writes it, and shown in a store of its own (SQLite) by the
mirror. Measured are the request that a leaderboard makes (all runs of the study, by time to
target), the same for the first hundred, which MLflow's table asks for, and, where there is a
Chromium, the pages as a person opens them: from the address until trials stand in the table, and
until the report's first plot is drawn within MLflow's artifact view.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import ROOT, arguments, introduce, keep, repeats_of, summary

from autotune.cli import mlflow_ui
from autotune.schedules import Cosine, Linear
from autotune.storage import manifest
from autotune.storage.journal import Closed, Journal, Opened
from autotune.tracking.mirror import catch_up, environment, ui_command
from autotune.trial import (
    Clock,
    Ended,
    Hardware,
    Report,
    Reported,
    Started,
    State,
    Suggested,
    Target,
)

STUDY_ID = "5eed" * 8
TARGET = Target("val_accuracy", 0.9, limit=60.0)
MILESTONES = 20
_CLOSED = """try { localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false'); } catch {}"""
_NO_PATH = """document.querySelectorAll('*').forEach(e => {
    if (!e.children.length && e.textContent.includes('file:///')) e.style.visibility = 'hidden';
})"""
_ROWS = "document.querySelectorAll('a[href*=\"/runs/\"]').length"


def written(folder: Path, trials: int) -> None:
    """A study of so many trials, two thirds of them stopped early, and four confirmations."""
    folder.mkdir(parents=True)
    fields = {"name": "many", "study_id": STUDY_ID, "seed": 0, "space": {"entries": {}}}
    (folder / "experiment.json").write_text(json.dumps({**fields, "target": TARGET.to_json()}))
    chance, hardware = random.Random(0), Hardware("cpu", 2, 1.0)
    with Journal(folder) as journal:
        journal.append(Opened("many"))
        for number in range(trials):
            rate, speed = chance.uniform(0.01, 1), chance.uniform(10, 40)
            batch, family = chance.choice([32, 64, 128]), chance.choice(["cosine", "linear"])
            curve = Linear(rate, 0.0) if family == "linear" else Cosine(rate, 0.0)
            kind, of = ("trial", None) if number < trials - 4 else ("confirm", 3 * (number % 2))
            config = {"lr": curve, "batch_size": batch, "momentum": chance.random()}
            point = {"lr.peak": rate, "lr.family": family, "lr.final": 0.0}
            point |= {"batch_size": batch, "momentum": config["momentum"]}
            journal.append(Suggested(number, config, point, kind, number, repeats=of))
            journal.append(Started(number, 0.25, hardware))
            reached = number % 3 == 0 or of is not None
            last = MILESTONES if reached else chance.randrange(2, MILESTONES)
            for i in range(last + 1):
                seconds = speed * i / MILESTONES
                metrics = {"val_accuracy": 0.9 * i / MILESTONES, "train_loss": 1 - i / MILESTONES}
                clock = Clock(setup=1.0, train=seconds, eval=0.01 * i)
                journal.append(Reported(number, Report(100 * i, seconds, metrics, clock)))
            state, why = (State.REACHED, "target") if reached else (State.CENSORED, "capped")
            at = 30.0 * number
            journal.append(Ended(number, state, why, speed * last / MILESTONES, "", "", at))
        journal.append(Closed("done"))
        journal.sync()


def timed(work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each time; the first one, which warms the server up, is left out."""
    found = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found[1:]


def searched(host: str, experiment: str, study_id: str, count: int) -> int:
    ask = {
        "experiment_ids": [experiment],
        "filter": f"tags.`autotune.study_id` = '{study_id}'",
        "order_by": ["metrics.`time_to_target_seconds` ASC"],
        "max_results": count,
    }
    request = urllib.request.Request(
        f"{host}/api/2.0/mlflow/runs/search",
        json.dumps(ask).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return len(json.load(answer)["runs"])


def pages(
    trials: str, charts: str, report: str, repeats: int, pictures: Path | None
) -> dict[str, Any]:
    """Seconds of the pages in Chromium; nothing where there is none."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from browser import PROGRAM, Browser

    if PROGRAM is None:
        print("no Chromium: pages are not measured")
        return {}
    with Browser() as browser:
        browser.size(1280, 900)
        browser.ask("Page.addScriptToEvaluateOnNewDocument", source=_CLOSED)

        def table() -> None:
            browser.open("about:blank")
            browser.open(trials)
            browser.until(f"{_ROWS} > 10")

        def shown() -> None:
            browser.open("about:blank")
            browser.open(report)
            browser.until("document.querySelector('iframe') !== null")
            (frame,) = browser.frames()
            browser.until("document.querySelectorAll('.main-svg').length > 0", frame=frame)

        def drawn() -> None:
            browser.open("about:blank")
            browser.open(charts)
            browser.until("document.querySelectorAll('.main-svg').length > 0")

        found: dict[str, Any] = {"table_seconds": timed(table, repeats)}
        if pictures is not None:
            picture(browser, pictures / "trials.png")
        found["charts_seconds"] = timed(drawn, repeats)
        if pictures is not None:
            browser.size(1280, 1500)  # what is not seen is not drawn
            drawn()
            picture(browser, pictures / "charts.png")
            browser.size(1280, 900)
        found["report_seconds"] = timed(shown, repeats)
        if pictures is not None:
            browser.says(_NO_PATH)
            picture(browser, pictures / "mlflow.png")
        return {**found, "errors": browser.errors}


def picture(browser: Any, file: Path) -> None:
    """Save what the page shows, once it moves no more, with as few colours as do."""
    from PIL import Image

    time.sleep(3.0)
    browser.picture(file)
    with Image.open(file) as made:
        few = made.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def alone(file: Path, pictures: Path) -> None:
    """A picture of the report as a page of its own."""
    from browser import Browser

    with Browser() as browser:
        browser.size(1200, 1060)
        browser.open(file.absolute())
        browser.until("document.querySelectorAll('#leaderboard .main-svg').length > 0")
        picture(browser, pictures / "report.png")


def measured(folder: Path, repeats: int, pictures: Path | None) -> dict[str, Any]:
    """Everything that is measured of a study folder."""
    begin = time.perf_counter()
    if not catch_up(folder, None, 3600.0):
        raise SystemExit(f"MLflow is not written: see {folder / 'mlflow.log'}")
    found: dict[str, Any] = {"mirror_seconds": time.perf_counter() - begin}
    study_manifest = manifest.read(folder)
    study = study_manifest["name"], study_manifest["study_id"]
    command = ui_command(folder)
    host = f"http://127.0.0.1:{command[command.index('--port') + 1]}"
    with open(folder / "ui.log", "wb") as log:
        server = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
    try:
        trials, charts, report = _served(host, *study)
        experiment = trials.partition("experiments/")[2].partition("/")[0]
        asked = host, experiment, study[1]
        found["runs"] = searched(*asked, 5000)
        found["all_seconds"] = timed(lambda: searched(*asked, 5000), repeats)
        found["hundred_seconds"] = timed(lambda: searched(*asked, 100), repeats)
        return {**found, **pages(trials, charts, report, repeats, pictures)}
    finally:
        server.terminate()
        server.wait(60)


def _served(host: str, name: str, study_id: str) -> tuple[str, str, str]:
    """The addresses of the trials, their charts and the report, once the server answers."""
    deadline = time.monotonic() + 300
    while True:
        try:
            trials, charts, report = mlflow_ui.addresses(host, name, study_id, TARGET)
            places = (line.partition(": ")[2] for line in (trials, charts, report))
            return next(places), next(places), next(places)
        except (OSError, KeyError, IndexError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--trials", type=int, help="of the study (300)")
    parser.add_argument("--study", type=Path, help="a study folder, instead of a made one")
    parser.add_argument("--pictures", type=Path, help="a folder for screenshots")
    options = parser.parse_args()
    trials = options.trials or (20 if options.quick else 300)
    repeats = 1 if options.quick else repeats_of(options)
    about = introduce()
    with tempfile.TemporaryDirectory() as place:
        folder = options.study or Path(place) / "study"
        if options.study is None:
            written(folder, trials)
        found = measured(folder, repeats, options.pictures)
        if options.pictures is not None:
            alone(folder / "report.html", options.pictures)
    print(f"{found['runs']} runs; written into MLflow in {found['mirror_seconds']:.1f} s")
    for name, what in (
        ("all_seconds", "request for all runs, by time to target"),
        ("hundred_seconds", "request for the first hundred"),
        ("table_seconds", "page with the table of trials"),
        ("charts_seconds", "page with the charts"),
        ("report_seconds", "page with the report in the artifact view"),
    ):
        if name in found:
            print(f"{what}: {summary(found[name], ' s')}")
    for error in found.get("errors", ()):
        print(f"console: {error}")
    keep(options.json, about, trials=trials, runs=found)


if __name__ == "__main__":
    main()
