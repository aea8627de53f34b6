"""Synchronise a tracking store with the journal until the study has ended.

The store is a view of the journal: after an error the list of runs is read from the store, and
everything else from the journal again.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.storage.journal import JOURNAL, REPORT
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.tracking.artifacts import write_study, write_trial
from autotune.tracking.backup import Backup
from autotune.tracking.cursor import Cursor
from autotune.tracking.names import clean
from autotune.tracking.projection import Projection
from autotune.tracking.run_content import (
    STUDY,
    MetricPoint,
    RunContent,
    StudyInfo,
    read_study_info,
)
from autotune.tracking.store import Store, is_refused, is_throttled

_TRIES = 7  # of a step that fails while the store takes other things: 25 s with the pauses
_LINES = 500  # of the journal, written before the cursor moves on
_REPORT_SECONDS, _REPORT_SHARE = 30.0, 0.05  # least pause between reports, and their share

Say = Callable[[str], None]
Write = Callable[[Path, Path], Mapping[str, float]]


class Copier:
    """Copies the study in `folder` to the store that `connect` opens.

    `report(folder, file)` writes the study's report, which stays in the folder and is uploaded to
    the study's own run with the figures that it returns. Errors are raised: the caller then calls
    `reset`, waits and retries. What the store refuses of one run, or what fails again and again
    while the store takes other things, is left out and said once.
    """

    def __init__(
        self,
        folder: Path,
        connect: Callable[[StudyInfo], Store],
        cursor: Cursor,
        say: Say,
        report: Write | None = None,
    ) -> None:
        self.cursor = cursor
        self._backup: Backup | None = None
        self._folder = folder
        self._connect = connect
        self.say = say
        self._report = report
        self._next_report = 0.0
        self._said: set[str] = set()
        self._failed: Counter[tuple[int, str]] = Counter()  # steps of runs, one after another
        self.reset()

    def reset(self) -> None:
        """Reset all state but the cursor, and what was said and counted."""
        self._fault: Exception | None = None
        self._store: Store | None = None
        self._sent: dict[int, RunContent] = {}
        self._uploaded: dict[int, float | None] = {}
        self._best = ""
        self._experiment: Mapping[str, str] = {}
        if self._backup is not None:
            self._backup.reset()
        self._reported = 0  # the line of the journal up to which the uploaded report goes

    def catch_up(self, over: bool) -> None:
        """Write the current journal; `over` when no driver runs the study any more."""
        if not (self._folder / JOURNAL).is_file():
            return
        fresh = self._store is None
        store = self._store or self._open()
        fault: Exception | None = None
        try:
            kept = self._update_backup(store, over)  # before the runs show the end of the driver
        except Exception as error:  # the runs are still written, but the study's run is not ended
            kept, fault = True, error
        news = fresh
        while True:
            changed, more = self._read()
            news = news or bool(changed)
            last = not more
            if last and (fresh or over):
                self._touch_running(changed)
            if changed and STUDY not in store.runs:
                store.create(STUDY, self._projection.content(STUDY, over=False))
            for number in sorted(changed, key=lambda n: (n == STUDY, n)):  # the study's run is last
                ends = over and last and fault is None and self._fault is None
                self._write(store, number, changed[number], ends)
                if self._backup is not None and fault is None and not over:
                    self._backup.heartbeat(store)
            if self._fault is not None:  # the cursor stays where it was
                raise self._fault
            if changed:
                self._save(store)
            if last:
                break
        if fault is not None:
            raise fault
        if not kept:
            self._update_backup(store, over)
        self._store = store
        if news and STUDY in store.runs:
            self._attempt(store, STUDY, "view", lambda: self._tag_experiment(store))
        self._update_report(store, over)
        if self._fault is not None:
            raise self._fault

    def _tag_experiment(self, store: Store) -> None:
        tags = self._projection.experiment_tags()
        if tags != self._experiment:
            store.tag_experiment(tags)
            self._experiment = tags

    def _update_report(self, store: Store, over: bool) -> None:
        """Update the report if there is news and the pause is over, or at the end."""
        news = self._projection.lines > self._reported
        due = over or time.monotonic() >= self._next_report
        if self._report is None or STUDY not in store.runs or not (news and due):
            return
        start, file, lines = time.monotonic(), self._folder / REPORT, self._projection.lines
        try:
            figures = self._report(self._folder, file)
        except Exception as error:  # without a report the runs are still written
            self._say_once(f"{REPORT} cannot be made: {error!r:.300}")
        else:
            self._attempt(
                store, STUDY, "report", lambda: self._send_report(store, figures, lines, over)
            )
        self._reported = lines
        took = time.monotonic() - start
        self._next_report = start + max(_REPORT_SECONDS, took / _REPORT_SHARE)

    def _send_report(
        self, store: Store, figures: Mapping[str, float], lines: int, over: bool
    ) -> None:
        with tempfile.TemporaryDirectory() as place:
            shutil.copy(self._folder / REPORT, place)
            store.upload(STUDY, Path(place))
        shown = replace(self._projection.content(STUDY, over), tags={}, params={})
        points = [MetricPoint(clean(k), v, lines, shown.end_ms) for k, v in figures.items()]
        store.log(STUDY, points, shown)

    def _update_backup(self, store: Store, over: bool) -> bool:
        """Update the copy of the folder, if the study's run exists."""
        if self._backup is None or STUDY not in store.runs:
            return False
        self._backup.keep(store, over)
        return True

    def _open(self) -> Store:
        facts = read_study_info(self._folder)
        if facts.mirrored and self._backup is None:
            self._backup = Backup(self._folder, STUDY)
        store = self._connect(facts)
        store.find_runs(self.cursor.runs)
        lost = [n for n, run in self.cursor.runs.items() if store.runs.get(n) != run]
        if lost:
            self.say(f"{len(lost)} runs are missing: the store is written from the start")
        if lost or not store.runs:
            self.cursor.lines = 0
        self.cursor.runs = dict(store.runs)
        self.cursor.save()
        self._projection, self._offset = Projection(facts), 0
        return store

    def _touch_running(self, changed: dict[int, list[MetricPoint]]) -> None:
        """Add running trials and the study, whose status may change without a new line."""
        if self._projection.lines:
            for number in [STUDY, *(n for n, t in self._projection.trials.items() if not t.ended)]:
                changed.setdefault(number, [])

    def _read(self) -> tuple[dict[int, list[MetricPoint]], bool]:
        """The runs that the next lines change, and whether more lines follow."""
        changed: dict[int, list[MetricPoint]] = {}
        fresh = 0
        with open(self._folder / JOURNAL, "rb") as file:
            file.seek(self._offset)
            while (line := file.readline()).endswith(b"\n"):
                if fresh == _LINES:
                    return changed, True
                try:
                    news = self._projection.take(line)
                except (ValueError, TypeError, KeyError) as error:
                    if not file.readline():  # incomplete: the next driver repairs it
                        break
                    where = f"{JOURNAL}, line {self._projection.lines + 1}"
                    raise ValueError(f"{where} is damaged: {error}") from error
                self._offset += len(line)
                if self._projection.lines > self.cursor.lines:
                    fresh += 1
                    for number, points in news.items():
                        changed.setdefault(number, []).extend(points)
        return changed, False

    def _write(self, store: Store, number: int, points: Sequence[MetricPoint], over: bool) -> None:
        """Write what is new of a run, in steps that do not depend on each other."""
        shown = self._projection.content(number, over)
        steps = {
            "log": lambda: self._log(store, number, points, shown),
            "upload": lambda: self._upload(store, number, over),
            "status": lambda: self._set_status(store, number, shown),
        }
        for name, step in steps.items():
            self._attempt(store, number, name, step)
            if number not in store.runs:
                return
        self._sent[number] = shown

    def _attempt(self, store: Store, number: int, name: str, step: Callable[[], None]) -> None:
        """Do a step of a run. One that fails is repeated after a reset, and at last left out."""
        try:
            step()
        except Exception as error:
            if is_throttled(error):
                raise
            self._check(store, number)
            if not is_refused(error):
                self._failed[number, name] += 1
                if self._failed[number, name] < _TRIES:
                    self._fault = self._fault or error
                    return
            run = "the study" if number == STUDY else f"trial {number}"
            self._say_once(f"{run}: MLflow does not show all of it: {error!r:.300}")
        else:
            self._failed.pop((number, name), None)

    def _check(self, store: Store, number: int) -> None:
        """Raise where the store itself is at fault, and not what was written to it."""
        store.check(number)
        with tempfile.TemporaryDirectory() as place:
            shutil.copy(self._folder / EXPERIMENT_JSON, place)
            store.upload(STUDY, Path(place))

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def _log(
        self, store: Store, number: int, points: Sequence[MetricPoint], shown: RunContent
    ) -> None:
        if number not in store.runs:
            store.create(number, shown)
            self._sent[number] = replace(shown, params={})
        store.log(number, points, _news(shown, self._sent.get(number)))

    def _upload(self, store: Store, number: int, over: bool) -> None:
        trial = self._projection.trials.get(number)
        if trial is None:
            best = self._projection.best_json()
            if over or best != self._best:
                names = [EXPERIMENT_JSON, *([JOURNAL] if over else [])]
                with tempfile.TemporaryDirectory() as place:
                    to = Path(place)
                    write_study(self._folder, names, self._projection, to, self._say_once)
                    store.upload(STUDY, to)
                self._best = best
        elif trial.ended and self._uploaded.get(number) != trial.ended_at:
            with tempfile.TemporaryDirectory() as place:
                write_trial(trial, Path(place), self._say_once)
                store.upload(trial.number, Path(place))
            self._uploaded[number] = trial.ended_at

    def _set_status(self, store: Store, number: int, shown: RunContent) -> None:
        sent = self._sent.get(number)
        if sent is None or shown.status != "RUNNING" or sent.status != "RUNNING":
            store.set_status(number, shown)

    def _save(self, store: Store) -> None:
        self.cursor.lines = max(self.cursor.lines, self._projection.lines)
        self.cursor.runs = dict(store.runs)
        self.cursor.save()


def _news(shown: RunContent, sent: RunContent | None) -> RunContent:
    """The params and tags of `shown` that were not sent yet."""
    if sent is None:
        return shown
    tags = {k: v for k, v in shown.tags.items() if sent.tags.get(k) != v}
    params = {k: v for k, v in shown.params.items() if sent.params.get(k) != v}
    return replace(shown, tags=tags, params=params)
