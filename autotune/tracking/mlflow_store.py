"""The MLflow implementation of a store of runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from autotune.tracking.run_content import STUDY, MetricPoint, RunContent, StudyInfo
from autotune.tracking.shared_view import KIND
from autotune.tracking.store import is_refused
from autotune.tracking.sync import Say
from autotune.trial.plain_text import plain_text

_BATCH = {"metrics": 800, "params": 100, "tags": 100}  # MLflow takes 1000 things, 100 texts each
_UNCLEAR = "INTERNAL_ERROR"  # a value that the store cannot take, or any fault of the store
_CHECKED = "autotune.checked"  # a tag of the study's run: when the store last took one as a check


class MlflowStore:
    """The runs of one study in an MLflow tracking store. Raises whatever MLflow raises.

    Points that exist are not added twice: the SQL stores identify them by their time.
    """

    def __init__(self, uri: str, facts: StudyInfo, artifacts: Path | None, say: Say) -> None:
        self.runs: dict[int, str] = {}
        self._client = MlflowClient(tracking_uri=uri)
        self._facts = facts
        self._say = say
        self._left_out: set[tuple[str, str]] = set()
        found = self._client.get_experiment_by_name(facts.name)
        if found is None:
            place = artifacts.as_uri() if artifacts is not None else None
            self._experiment = self._client.create_experiment(
                facts.name, artifact_location=place, tags=KIND
            )
        else:
            self._experiment = found.experiment_id
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(self._experiment)

    def find_runs(self, known: Mapping[int, str]) -> None:
        found: dict[int, list[Run]] = {}
        for run in self._search():
            number = _number(run)
            if number is not None:
                found.setdefault(number, []).append(run)
        for number, runs in found.items():
            runs.sort(key=lambda r: (r.info.run_id != known.get(number), _deleted(r)))
            kept, *spare = runs
            self.runs[number] = kept.info.run_id
            if _deleted(kept):
                self._client.restore_run(kept.info.run_id)
            for run in [r for r in spare if not _deleted(r)]:
                self._client.delete_run(run.info.run_id)

    def _search(self) -> Iterator[Run]:
        wanted = f"tags.`autotune.study_id` = '{self._facts.study_id}'"
        token: str | None = None
        while token != "":
            page = self._client.search_runs(
                [self._experiment], wanted, ViewType.ALL, page_token=token
            )
            yield from page
            token = page.token or ""

    def create(self, number: int, shown: RunContent) -> None:
        tags = dict(shown.tags)
        if number != STUDY:
            tags["mlflow.parentRunId"] = self.runs[STUDY]
        if commit := self._facts.others.get("git_commit"):
            tags["mlflow.source.git.commit"] = commit
        run = self._client.create_run(self._experiment, shown.start_ms, tags, shown.name)
        self.runs[number] = run.info.run_id

    def log(self, number: int, points: Sequence[MetricPoint], shown: RunContent) -> None:
        rest: dict[str, list[Any]] = {
            "metrics": [Metric(p.key, p.value, p.time_ms, p.step) for p in points],
            "params": [Param(k, v) for k, v in shown.params.items()],
            "tags": [RunTag(k, v) for k, v in shown.tags.items()],
        }
        faults: list[MlflowException] = []
        while any(rest.values()):
            batch = {k: v[: _BATCH[k]] for k, v in rest.items()}
            self._log_batch(self.runs[number], batch, faults)
            rest = {k: v[_BATCH[k] :] for k, v in rest.items()}
        if faults:  # everything else has been sent
            raise faults[0]

    def _log_batch(
        self, run: str, batch: Mapping[str, list[Any]], faults: list[MlflowException]
    ) -> None:
        """Send a batch; items that MLflow refuses are left out, others that fail are `faults`."""
        try:
            self._client.log_batch(run, **batch)
        except MlflowException as error:
            if not is_refused(error) and error.error_code != _UNCLEAR:
                raise
            things = [(kind, thing) for kind, many in batch.items() for thing in many]
            if len(things) == 1:
                self._check(run)
                if is_refused(error):
                    self._leave_out(run, things[0][1].key, error)
                else:
                    faults.append(error)
                return
            for kind, thing in things:
                self._log_batch(run, {kind: [thing]}, faults)

    def _leave_out(self, run: str, key: str, error: MlflowException) -> None:
        if (run, key) not in self._left_out:
            self._left_out.add((run, key))
            self._say(plain_text(f"MLflow refused {key!r:.80}: {error!s:.200}"))

    def check(self, number: int) -> None:
        self._check(self.runs.get(number, self.runs[STUDY]))

    def _check(self, run: str) -> None:
        """Raise where the run is deleted, or nothing can be written at all."""
        if _deleted(self._client.get_run(run)):
            raise RuntimeError("the run is deleted")
        self.tag(STUDY, {_CHECKED: str(time.time())})

    def upload(self, number: int, folder: Path) -> None:
        self._client.log_artifacts(self.runs[number], str(folder))

    def remove(self, number: int, names: Iterable[str]) -> None:
        place = self._client.get_run(self.runs[number]).info.artifact_uri
        kept = get_artifact_repository(place, tracking_uri=self._client.tracking_uri)
        for name in names:
            with suppress(Exception):  # a store that cannot remove keeps more than needed
                kept.delete_artifacts(name)

    def list_files(self, number: int, folder: str) -> list[str]:
        found = self._client.list_artifacts(self.runs[number], folder)
        inner = (self.list_files(number, a.path) if a.is_dir else [a.path] for a in found)
        return [name for names in inner for name in names]

    def tag(self, number: int, tags: Mapping[str, str]) -> None:
        self._client.log_batch(self.runs[number], tags=[RunTag(k, v) for k, v in tags.items()])

    def tag_experiment(self, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self._client.set_experiment_tag(self._experiment, key, value)

    def set_status(self, number: int, shown: RunContent) -> None:
        if shown.status == "RUNNING":
            self._client.update_run(self.runs[number], shown.status)
        else:
            self._client.set_terminated(self.runs[number], shown.status, shown.end_ms)


def _number(run: Run) -> int | None:
    """The number that the run is known by; None where somebody has changed its tags."""
    tags = run.data.tags
    if tags.get("autotune.kind") == "study":
        return STUDY
    number = tags.get("autotune.trial", "")
    return int(number) if number.isdecimal() else None


def _deleted(run: Run) -> bool:
    return bool(run.info.lifecycle_stage == "deleted")
