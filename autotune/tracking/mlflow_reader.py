"""Reader of an MLflow experiment, for `compare` and `from_mlflow`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from autotune.errors import UserError, unknown
from autotune.tracking.uris import cause, check_uri, label, redact

_STUDIES = "tags.`autotune.kind` = 'study'"


def experiments(uri: str) -> list[str]:
    """The names of a store's experiments.

    Raises:
        UserError: there is no such store, or no answer.
    """
    _check_there(uri)
    try:
        return sorted(e.name for e in MlflowClient(tracking_uri=uri).search_experiments())
    except (MlflowException, OSError) as error:
        line = " ".join(f"{label(uri)}: {cause(error)}".split())
        raise UserError(redact(line, uri)[:300]) from None


def _check_there(uri: str) -> None:
    """Refuse a URI that is none, and a file that is not there, which MLflow would make."""
    check_uri(uri)
    file = uri.partition(":///")[2].partition("?")[0]
    if uri.startswith("sqlite") and not Path(file).is_file():
        raise UserError(f"there is no MLflow store in {file}: name one with --tracking-uri")


class Reader:
    """Read-only access to the runs of one experiment of a tracking store.

    Raises:
        UserError: no such store, experiment or run (with the nearest name), or no answer.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        _check_there(uri)
        self._uri = uri
        self._client = MlflowClient(tracking_uri=uri)
        with self._user_errors():
            found = self._client.get_experiment_by_name(experiment)
            if found is None:
                names = [e.name for e in self._client.search_experiments()]
                raise UserError(unknown("MLflow experiment", experiment, names))
        self._experiment = found

    def find(self, name: str) -> Run:
        """The run with this name or id, or of the trial; the newest if several have the name."""
        with self._user_errors():
            own = [self._experiment.experiment_id]
            runs = list(self._client.search_runs(own, max_results=5000))
        named = [r for r in runs if name in (r.info.run_name, r.info.run_id)]
        named = named or [r for r in runs if name == f"trial-{_trial(r):0>4}"]
        if not named:
            names = [r.info.run_name or r.info.run_id for r in runs]
            raise UserError(f"{self._experiment.name}: {unknown('MLflow run', name, names)}")
        return max(named, key=lambda r: int(r.info.start_time or 0))

    def studies(self) -> list[Run]:
        """The runs of whole studies, which autotune made, the newest first; not their trials."""
        with self._user_errors():
            own = [self._experiment.experiment_id]
            return list(self._client.search_runs(own, _STUDIES, max_results=5000))

    def fetch(self, run_id: str, names: Sequence[str], folder: Path) -> bool:
        """Copy these artifacts of the run into `folder`; return whether it has them all."""
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        with self._user_errors():
            paths = {a.path for a in self._client.list_artifacts(run_id)}
            for name in names if paths.issuperset(names) else ():
                self._client.download_artifacts(run_id, name, str(folder))
        return paths.issuperset(names)

    def history(self, run_id: str, metric: str) -> list[tuple[int, int, float]]:
        """All (step, milliseconds since 1970, value) of the metric, in order of time."""
        with self._user_errors():
            found = self._client.get_metric_history(run_id, metric)
        return sorted((m.step, m.timestamp, m.value) for m in found)

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        """Raise MLflow's errors as a UserError of one line without secrets."""
        try:
            yield
        except (MlflowException, OSError) as error:
            line = " ".join(f"{label(self._uri)}: {cause(error)}".split())
            raise UserError(redact(line, self._uri)[:300]) from None


def _trial(run: Run) -> str:
    """The number of the trial: all runs of older studies are named by it."""
    return str(run.data.tags.get("autotune.trial", ""))
