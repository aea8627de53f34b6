"""Summaries of studies that are there already: study folders, folders of them, files, MLflow."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UserError, unknown
from autotune.evaluation import studies
from autotune.storage import driver_lock
from autotune.storage.journal import JOURNAL
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study import result
from autotune.study.experience import document, store, summary
from autotune.study.experience.document import Summary
from autotune.study.manifest import Manifest


@dataclass(frozen=True)
class Found:
    """A study that was looked at: its summary, or why it has none."""

    source: str
    summary: Summary | None = None
    fault: str = ""


def of_path(path: Path) -> list[Found]:
    """Of a study folder, of the studies and files of a folder, or of a file.

    Raises:
        UserError: it is none of these.
    """
    if studies.is_study(path):
        return [_of_folder(path, str(path))]
    if path.is_file():
        return _of_file(path)
    if not path.is_dir():
        if not path.exists():
            raise UserError(
                f"{path} does not exist: add a study, a folder of studies or an exported file"
            )
        raise UserError(f"{path} is neither a study, nor a folder of studies, nor an exported file")
    files = [found for file in store.files(path) for found in _of_file(file)]
    folders = sorted(place for place in path.iterdir() if studies.is_study(place))
    if not folders and not files:
        raise UserError(f"{path} holds no study: no folder in it has an {EXPERIMENT_JSON}")
    return [*(_of_folder(place, str(place)) for place in folders), *files]


def of_mlflow(uri: str, names: Sequence[str]) -> list[Found]:
    """Of the finished studies in an MLflow store.

    Args:
        uri: the store's.
        names: of the studies; none for all.

    Raises:
        UserError: there is no such store or study, or no answer.
    """
    from autotune.tracking.mlflow_reader import Reader, experiments

    known = experiments(uri)
    for name in names:
        if name not in known:
            raise UserError(unknown("study in MLflow", name, known))
    return [found for name in names or known for found in _of_runs(Reader(uri, name), name)]


def _of_runs(reader: object, name: str) -> Iterator[Found]:
    from autotune.tracking.mlflow_reader import Reader

    assert isinstance(reader, Reader)
    for run in reader.studies():
        run_id = run.info.run_id
        source = f"mlflow:{name}/{run.info.run_name or run_id}"
        with tempfile.TemporaryDirectory() as place:
            if reader.fetch(run_id, [EXPERIMENT_JSON, JOURNAL], Path(place)):
                yield _of_folder(Path(place), source)
            else:
                fault = f"it has no {JOURNAL} yet: it comes when the study has ended"
                yield Found(source, fault=fault)


def _of_file(path: Path) -> list[Found]:
    try:
        found = document.read(path)
    except ValueError as error:
        return [Found(str(path), fault=str(error))]
    return [Found(str(path), one) for one in found]


def _of_folder(folder: Path, source: str) -> Found:
    if driver_lock.is_held(folder / JOURNAL):
        return Found(source, fault="it is still running")
    try:
        manifest = Manifest.read(folder)
        trials = result.read(folder, manifest.target, {manifest.target.metric}).trials
        return Found(source, summary.of_study(manifest, folder, trials))
    except ValueError as error:  # a UserError is one
        return Found(source, fault=str(error).replace(str(folder), source))
