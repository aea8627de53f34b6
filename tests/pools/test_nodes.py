"""A real cluster of several nodes, which come and go while a study runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nodes_recipe
import pytest
from nodes import Cluster, cluster, environment

from autotune import cli
from autotune.trackers import journal
from autotune.trackers.journal import JOURNAL, Closed, Opened
from autotune.trial import Ended, Event, Lost, Saved, Started, State, Suggested, Trial, fold

TRIALS = 6
DEADLINE = 180.0  # seconds for what takes one or two on an idle machine
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass
class Study:
    """A study in a folder, driven by `autotune` in processes of their own."""

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder.parent / "log"

    def command(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "autotune.cli", *words, "--tracking-uri", "off"],
            env=environment({"NODES_LOG": str(self.log)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, recipe: str, address: str, trials: int, *more: str) -> subprocess.Popen[str]:
        where = ("--out", str(self.folder), "--ray-address", address)
        how = ("--sampler", "random", "--pruner", "none", "--trials", str(trials))
        return self.command("run", f"{nodes_recipe.__file__}:{recipe}", *where, *how, *more)

    def pace(self, nap: float) -> None:
        """Seconds a step from now on."""
        file = self.folder.parent / "nap"
        file.with_suffix(".new").write_text(str(nap))
        file.with_suffix(".new").replace(file)

    def lines(self) -> list[dict[str, Any]]:
        file = self.folder / JOURNAL
        whole = file.read_text().rpartition("\n")[0] if file.is_file() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def events(self) -> list[Event]:
        if not (self.folder / JOURNAL).is_file():
            return []
        return [e for e in journal.read(self.folder) if not isinstance(e, Opened | Closed)]

    def trials(self) -> dict[int, Trial]:
        return fold(self.events())

    def running(self) -> list[Trial]:
        return [t for t in self.trials().values() if t.placed]

    def until(self, holds: Callable[[], Any], driver: subprocess.Popen[str]) -> Any:
        end = time.monotonic() + DEADLINE
        while not (found := holds()):
            assert driver.poll() is None, driver.communicate()[0][-3000:]
            assert time.monotonic() < end, f"not in time: {self.lines()[-3:]}"
            time.sleep(0.1)
        return found


def finished(driver: subprocess.Popen[str], code: int) -> str:
    out, _ = driver.communicate(timeout=DEADLINE)
    assert driver.returncode == code, out[-3000:]
    return out


@dataclass
class Story:
    """What happened to one study, whose cluster grew, shrank, lost its head and was replaced."""

    study: Study
    grown_at: float  # moments, as the journal tells the time
    shrunk_at: float
    lost: int
    said: str
    head_seconds: float
    cluster: Cluster


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    study = Study(tmp_path_factory.mktemp("nodes") / "study")
    study.pace(2.0)
    with cluster() as first:
        first.add()
        driver = study.run("study", first.address, TRIALS)
        study.until(lambda: [t for t in study.running() if t.reports], driver)
        grown_at = time.time()
        other = first.add(env={"AUTOTUNE_HARDWARE": "lent"})
        study.until(
            lambda: [t for t in study.running() if t.hardware.label and t.checkpoint], driver
        )
        (lost,) = (t.number for t in study.running() if t.hardware.label)
        shrunk_at = time.time()
        other.kill()
        study.pace(0.3)
        study.until(lambda: study.trials()[lost].attempts == 2, driver)
        study.until(lambda: [t for t in study.running() if t.checkpoint], driver)
        first.head.kill()
        begin = time.monotonic()
        said = finished(driver, cli.BROKEN)
        head_seconds = time.monotonic() - begin
    study.pace(0.02)
    with cluster(cpus=1) as second:
        resumed = study.command("resume", str(study.folder), "--ray-address", second.address)
        said += finished(resumed, cli.DONE)
        yield Story(study, grown_at, shrunk_at, lost, said, head_seconds, second)


def test_a_node_that_is_added_is_used_while_the_study_runs(story: Story) -> None:
    lines = story.study.lines()
    starts = {line["trial"]: line["time"] for line in reversed(lines) if line["event"] == "started"}
    ends = {line["trial"]: line["time"] for line in lines if line["event"] == "ended"}
    print(starts, ends, story)


def test_print(story: Story) -> None:
    for line in story.study.lines():
        if line["event"] != "reported":
            print(line)
    print(story)
    print(story.study.log.read_text()[-3000:])
    assert 0
