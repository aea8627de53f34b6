"""A view that lags far behind its journal: it catches up in small steps, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from autotune.tracking import sync
from autotune.tracking.cursor import Cursor
from autotune.tracking.mirror import CURSOR
from autotune.tracking.run_content import MetricPoint, RunContent
from autotune.tracking.sync import Copier
from autotune.trial import Reported

from .conftest import StudyFolder, report

METRICS = {f"metric_{i:02d}": float(i) for i in range(49)}  # and `acc`


class Counted:
    """A store that keeps nothing but counts."""

    def __init__(self) -> None:
        self.runs: dict[int, str] = {}
        self.points = self.most = 0

    def find_runs(self, known: Mapping[int, str]) -> None:
        """There are none."""

    def create(self, number: int, shown: RunContent) -> None:
        self.runs[number] = f"run-{number}"

    def log(self, number: int, points: Sequence[MetricPoint], shown: RunContent) -> None:
        self.points += sum(p.key in METRICS for p in points)
        self.most = max(self.most, len(points))

    def upload(self, number: int, folder: Path) -> None: ...
    def remove(self, number: int, names: Iterable[str]) -> None: ...

    def list_files(self, number: int, folder: str) -> list[str]:
        return []

    def tag(self, number: int, tags: Mapping[str, str]) -> None: ...
    def tag_experiment(self, tags: Mapping[str, str]) -> None: ...
    def set_status(self, number: int, shown: RunContent) -> None: ...


def behind(path: Path, milestones: int) -> tuple[Counted, int]:
    """What a store gets that begins so many milestones behind, and the most memory it took."""
    study = StudyFolder(path / str(milestones))
    with study.journal as journal:
        study.begin(0)
        for step in range(milestones):
            journal.append(Reported(0, report(step, **METRICS)))
        journal.sync()
    store = Counted()
    made = Copier(study.path, lambda _: store, Cursor(study.path / CURSOR, "own"), print)
    tracemalloc.start()
    try:
        made.catch_up(over=False)
        return store, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_however_far_it_lags_it_holds_no_more(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_LINES", 50)
    behind(fast_path, 1)  # what is imported once
    few, less = behind(fast_path, 150)
    many, more = behind(fast_path, 600)
    assert (few.points, many.points) == (150 * len(METRICS), 600 * len(METRICS))
    assert many.most <= 50 * (len(METRICS) + 20), "in steps of so many lines"
    per_point = (more - less) / (many.points - few.points)
    assert per_point < 40, f"{per_point:.0f} bytes are kept of each point that was shown"
