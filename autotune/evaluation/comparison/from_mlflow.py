"""Candidates from MLflow: studies and trials that autotune has shown there, and anybody's runs.

A study's own run has its journal as an artifact, so that it is read as a study folder is. Of a run
that autotune did not make only a metric's history is known: it is timed by the wall clock, from
the start of the run to the first value that meets the target.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UserError, unknown
from autotune.evaluation.comparison import dawnbench, from_studies
from autotune.evaluation.comparison.model import TUNING, Candidate, ComparedTarget, Conditions
from autotune.storage.journal import JOURNAL
from autotune.storage.manifest import EXPERIMENT_JSON

if TYPE_CHECKING:
    from autotune.tracking.mlflow_reader import Reader

PREFIX = "mlflow:"
_HERE = "sqlite:///mlflow.db"


def read(
    spec: str, tracking_uri: str | None, target: ComparedTarget | None
) -> tuple[from_studies.Study | None, int | None, Candidate | None]:
    """What `mlflow:EXPERIMENT/RUN` names: a study (and a trial of it), or a candidate.

    Raises:
        UserError: it is of no such form, no such store, experiment or run, a study that is still
            running, a run of somebody else's without `target`.
    """
    from autotune.tracking.mlflow_reader import Reader

    experiment, _, name = spec.removeprefix(PREFIX).rpartition("/")
    if not experiment or not name:
        raise UserError(f"an MLflow run must be named like mlflow:EXPERIMENT/RUN but got {spec!r}")
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or _HERE
    reader = Reader(uri, experiment)
    run = reader.find(name)
    tags: dict[str, str] = run.data.tags
    if "autotune.kind" not in tags:
        return None, None, _foreign(reader, run, spec, target)
    if tags["autotune.kind"] == "study":
        return _study(reader, run.info.run_id, experiment, spec), None, None
    parent = tags.get("mlflow.parentRunId")
    if parent is None or not tags.get("autotune.trial", "").isdigit():
        raise UserError(f"{spec} is no run of a study: its parent is not known")
    return _study(reader, parent, experiment, spec), int(tags["autotune.trial"]), None


def _study(reader: Reader, run_id: str, label: str, spec: str) -> from_studies.Study:
    """The study whose own run this is, read from the journal that is with it."""
    with tempfile.TemporaryDirectory() as place:
        if not reader.fetch(run_id, [EXPERIMENT_JSON, JOURNAL], Path(place)):
            raise UserError(f"{spec} has no {JOURNAL} yet: it comes when the study has ended")
        return from_studies.read(Path(place), label, _source(reader, run_id, label))


def _source(reader: Reader, run_id: str, experiment: str) -> str:
    """The word for the study itself, the same for all its trials: by name, if that is its own."""
    name = str(reader.find(run_id).info.run_name)
    own = reader.find(name).info.run_id == run_id
    return f"{PREFIX}{experiment}/{name if own else run_id}"


def _foreign(reader: Reader, run: Any, spec: str, target: ComparedTarget | None) -> Candidate:
    """A run that autotune did not make, timed by the wall clock."""
    if target is None:
        raise UserError(f"{spec} is no run of autotune's: say what it had to reach with --target")
    points = reader.history(run.info.run_id, target.metric)
    if not points:
        raise UserError(f"{spec}: {unknown('metric', target.metric, run.data.metrics)}")
    begin = int(run.info.start_time)
    curve = tuple((float(step), (ms - begin) / 1000, value) for step, ms, value in points)
    timed = dawnbench.run(spec, curve, target, unit="steps")
    conditions = Conditions(clock="wall", target=target)
    return Candidate(
        spec.rpartition("/")[2], spec, TUNING, (timed,), conditions, config=run.data.params
    )
