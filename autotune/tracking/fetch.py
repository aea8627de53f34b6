"""Fetch a study's copy from MLflow: `python -m autotune.tracking.fetch STUDY [FOLDER]`.

Without a folder it only checks whether a driver elsewhere works on the study, and with
`--further FOLDER` whether that folder's study was continued elsewhere.

It is a separate process, as the mirror is: MLflow is slow to import and needs its own environment.
MLFLOW_TRACKING_URI is the address of the store. The last line of stderr is the error.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from autotune.errors import UserError, unknown
from autotune.storage import manifest
from autotune.tracking import backup
from autotune.tracking.mirror import FURTHER, NO_COPY, REFUSED
from autotune.tracking.restore import read_manifest, restore
from autotune.tracking.uris import error_line

_LOOK_SECONDS = 1.0
_KIND = "tags.`autotune.kind` = 'study'"


def fetch(client: MlflowClient, study: str, folder: Path) -> str:
    """Make a study folder from the newest copy of the study; return a line about it.

    Raises:
        LookupError: the store has no such study, or no copy of it.
        UserError: a driver works on the study, or the copy is damaged.
    """
    run = refuse_second(client, study)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as place:
        client.download_artifacts(run.info.run_id, backup.COPY, place)
        restore(Path(place) / backup.COPY, folder, _say)
    return f"fetched the study {study!r} from MLflow into {folder}"


def refuse_second(client: MlflowClient, study: str) -> Run:
    """The run with the newest copy of the study, which no driver works on.

    Raises:
        LookupError: the store has no such study, or no copy of it.
        UserError: a driver works on the study.
    """
    copies = _copies(client, study)
    run = next((run for run in copies if _has_driver(client, run)), None)
    if run is not None:
        ago = max(0.0, backup.seconds_since_heartbeat(run.data.tags))
        raise UserError(
            f"a driver is running the study {study!r} (last heartbeat {ago:.0f} s ago): cancel it, "
            f"or wait {backup.ALIVE_SECONDS:.0f} s if it was killed"
        )
    return copies[0]


def refuse_stale(client: MlflowClient, folder: Path) -> None:
    """Check that the study in `folder` was not continued elsewhere from its copy.

    Raises:
        UserError: it was.
    """
    data = manifest.read(folder)
    study, own = data["name"], f"tags.`autotune.study_id` = '{data['study_id']}'"
    experiment = client.get_experiment_by_name(study)
    runs = (
        client.search_runs([experiment.experiment_id], f"{_KIND} and {own}") if experiment else []
    )
    copies = [run for run in runs if backup.MIRRORED in run.data.tags]
    if any(_generation(client, run) > backup.own_generation(folder) for run in copies):
        raise UserError(
            f"the study {study!r} was fetched from MLflow and continued elsewhere since it was in "
            f"{folder}: continue it with `autotune resume --from-mlflow`"
        )


def _generation(client: MlflowClient, run: Run) -> int:
    """The generation of the copy's study folder; 0 if there is no complete copy."""
    with tempfile.TemporaryDirectory() as place:
        name = f"{backup.COPY}/{backup.MANIFEST}"
        file = Path(client.download_artifacts(run.info.run_id, name, place))
        with contextlib.suppress(UserError):
            return backup.generation(read_manifest(file.parent)[1])
    return 0


def _has_driver(client: MlflowClient, run: Run) -> bool:
    """Whether a driver works on the study.

    A heartbeat far in the future comes from a wrong clock, and would stay valid for that long. In
    this case the study has a driver if another heartbeat follows.
    """
    if not backup.ahead(run.data.tags):
        return backup.alive(run.info.status, run.data.tags)
    end, heartbeat = time.monotonic() + backup.WATCH_SECONDS, run.data.tags[backup.MIRRORED]
    while run.info.status == "RUNNING" and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
        run = client.get_run(run.info.run_id)
        if run.data.tags.get(backup.MIRRORED) != heartbeat:
            return bool(run.info.status == "RUNNING")
    return False


def _copies(client: MlflowClient, study: str) -> list[Run]:
    """The runs of the study that have a copy, the newest first."""
    experiment = client.get_experiment_by_name(study)
    if experiment is None:
        names = [e.name for e in client.search_experiments()]
        raise LookupError(unknown("study in MLflow", study, names))
    runs = client.search_runs([experiment.experiment_id], _KIND)
    kept = [run for run in runs if backup.MIRRORED in run.data.tags]
    if not kept:
        raise LookupError(f"MLflow has no copy of the study {study!r}: it was run without --mirror")
    return sorted(kept, key=lambda run: backup.seconds_since_heartbeat(run.data.tags))


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    """Fetch the study `arguments[0]` into the folder `arguments[1]`, if that is given."""
    uri = os.environ["MLFLOW_TRACKING_URI"]
    study, *folder = arguments
    try:
        client = MlflowClient(tracking_uri=uri)
        if study == FURTHER:
            refuse_stale(client, Path(folder[0]))
        elif folder:
            _say(fetch(client, study, Path(folder[0])))
        else:
            refuse_second(client, study)
    except LookupError as error:
        _say(str(error))
        return NO_COPY
    except UserError as error:
        _say(str(error))
        return REFUSED
    except Exception as error:  # whatever MLflow, the network or the disk raise
        _say(error_line(error, uri)[:400])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
