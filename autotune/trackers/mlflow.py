"""Shows a study in MLflow: `python -m autotune.trackers.mlflow DIR`, started by a `Mirror`.

The process follows the journal until its standard input ends, which says that no driver runs the
study any more; then it writes what is missing, closes the runs and leaves with 0. The journal is
the truth and the store only a view of it: after any trouble, what the store has is asked of the
store, everything else is read from the journal again.

The tracking URI comes in the environment (`MLFLOW_TRACKING_URI`), because it may hold a password.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException

from autotune.trackers.journal import JOURNAL
from autotune.trackers.mirror import CURSOR, GAVE_UP, STORE, default_uri, label, redact
from autotune.trackers.story import Story
from autotune.trackers.view import (
    EXPERIMENT,
    STUDY,
    Facts,
    Point,
    Shown,
    read_facts,
    schedules_of,
    trial_files,
)
from autotune.trial import Trial

_POLL_SECONDS = 1.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
_LINES = 500  # of the journal, written before the cursor moves on
_POINTS, _TEXTS = 800, 100  # in one batch: MLflow takes 1000 things, 100 of them params or tags
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")

Say = Callable[[str], None]


class Store:
    """The runs of one study in a tracking store. Raises whatever MLflow raises."""

    def __init__(self, uri: str, folder: Path, facts: Facts, say: Say) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        self._facts = facts
        self._say = say
        self._experiment = self._find_experiment(folder if uri == default_uri(folder) else None)
        self.runs: dict[int, str] = {}

    def _find_experiment(self, folder: Path | None) -> str:
        name = self._facts.name
        found = self._client.get_experiment_by_name(name)
        if found is None:
            place = (folder / "artifacts").absolute().as_uri() if folder is not None else None
            return str(self._client.create_experiment(name, artifact_location=place))
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def find_runs(self, known: Mapping[int, str]) -> None:
        """Ask which runs there are. Of two for one trial, `known` or else the first is kept."""
        found: dict[int, list[Run]] = {}
        for run in self._search():
            tags = run.data.tags
            number = STUDY if tags["autotune.kind"] == "study" else int(tags["autotune.trial"])
            found.setdefault(number, []).append(run)
        for number, runs in found.items():
            runs.sort(key=lambda run: run.info.lifecycle_stage == "deleted")
            kept = next((r for r in runs if r.info.run_id == known.get(number)), runs[0])
            self.runs[number] = kept.info.run_id
            if kept.info.lifecycle_stage == "deleted":
                self._client.restore_run(kept.info.run_id)
            for run in runs:
                if run is not kept and run.info.lifecycle_stage != "deleted":
                    self._client.delete_run(run.info.run_id)

    def _search(self) -> Iterable[Run]:
        wanted = f"tags.`autotune.study_id` = '{self._facts.study_id}'"
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment],
                wanted,
                ViewType.ALL,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return

    def create(self, number: int, shown: Shown) -> None:
        """Make the run of a trial, or of the STUDY, and remember it."""
        parent = {} if number == STUDY else {"mlflow.parentRunId": self.runs[STUDY]}
        commit = self._facts.others.get("git_commit")
        source = {"mlflow.source.git.commit": commit} if commit else {}
        run = self._client.create_run(
            self._experiment, shown.start_ms, {**shown.tags, **parent, **source}, shown.name
        )
        self.runs[number] = run.info.run_id

    def log(self, number: int, points: Sequence[Point], shown: Shown) -> None:
        """Add points, params and tags. What MLflow refuses is told and left out."""
        metrics = [Metric(p.key, p.value, p.time_ms, p.step) for p in points]
        params = [Param(k, v) for k, v in shown.params.items()]
        tags = [RunTag(k, v) for k, v in shown.tags.items()]
        rest: dict[str, Iterable[Any]] = {
            "metrics": iter(metrics),
            "params": iter(params),
            "tags": iter(tags),
        }
        while True:
            batch: dict[str, list[Any]] = {
                k: list(islice(v, _POINTS if k == "metrics" else _TEXTS)) for k, v in rest.items()
            }
            if not any(batch.values()):
                return
            self._log_batch(self.runs[number], batch)

    def _log_batch(self, run: str, batch: Mapping[str, list[Any]]) -> None:
        try:
            self._client.log_batch(run, **batch)
        except MlflowException as error:
            if error.error_code not in _REFUSED or self._deleted(run):
                raise
            things = [(kind, thing) for kind, many in batch.items() for thing in many]
            if len(things) == 1:
                self._say(f"refused: {things[0][1]!r:.200}: {error}")
            else:
                for kind, thing in things:
                    self._log_batch(run, {kind: [thing]})

    def _deleted(self, run: str) -> bool:
        return bool(self._client.get_run(run).info.lifecycle_stage == "deleted")

    def upload(self, number: int, folder: Path) -> None:
        """Add the files in `folder` as artifacts."""
        self._client.log_artifacts(self.runs[number], str(folder))

    def set_status(self, number: int, shown: Shown) -> None:
        if shown.status == "RUNNING":
            self._client.update_run(self.runs[number], "RUNNING")
        else:
            self._client.set_terminated(self.runs[number], shown.status, shown.end_ms)


