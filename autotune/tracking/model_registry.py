"""MLflow's model registry: one version of a registered model for a study's best trial.

The model is stored as the graph that `torch.export` makes of it (MLflow's `pt2`): neither a class
nor pickled code is needed to load it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow.pytorch
import torch
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput, Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec
from torch import Tensor, nn

from autotune.errors import UserError

_PATIENCE_SECONDS, _POLL_SECONDS = 120.0, 1.0
_EXISTS = "RESOURCE_ALREADY_EXISTS"
_NEEDS = ("mlflow", "torch", "numpy")  # to load it


@dataclass(frozen=True)
class Entry:
    """What is to be registered: a model, an example of its input, and what is told of it.

    Args:
        study_id, trial: of the trial whose weights these are.
        files: go with the model, as `extra_files`.
        tags: of the version. One that has the same first three is the same model.
        text: its description.
    """

    study_id: str
    trial: int
    model: nn.Module
    example: Tensor
    files: Sequence[Path]
    tags: Mapping[str, str]
    text: str


def register(
    uri: str, name: str, entry: Entry, patience: float = _PATIENCE_SECONDS
) -> tuple[int, bool]:
    """Make the model a version of the registered model `name`: its number, and whether it is new.

    Registered again, the version gets the tags as they are now.

    Args:
        patience: seconds for which the trial's run is waited for.

    Raises:
        UserError: MLflow has no run of the trial by then.
        MlflowException, OSError: what MLflow and the store of artifacts raise.
    """
    client = MlflowClient(tracking_uri=uri)
    run = _run(client, entry, patience)
    found = _version(client, name, run)
    if found is None:
        return int(_made(client, name, entry, run).version), True
    for key, value in entry.tags.items():
        client.set_model_version_tag(name, found.version, key, value)
    client.update_model_version(name, found.version, entry.text)
    return int(found.version), False


def _run(client: MlflowClient, entry: Entry, patience: float) -> Run:
    """The trial's run, which may still be written."""
    wanted = f"tags.`autotune.study_id` = '{entry.study_id}'"
    wanted += f" AND tags.`autotune.trial` = '{entry.trial}'"
    deadline = time.monotonic() + patience
    while True:
        experiments = [e.experiment_id for e in client.search_experiments()]
        if found := client.search_runs(experiments, wanted):
            return found[0]
        if time.monotonic() >= deadline:
            raise UserError(f"MLflow has no run of trial {entry.trial} yet")
        time.sleep(_POLL_SECONDS)


def _version(client: MlflowClient, name: str, run: Run) -> ModelVersion | None:
    made = client.search_model_versions(f"run_id = '{run.info.run_id}'")
    found = (v for v in made if v.name == name)
    return max(found, key=lambda v: int(v.version), default=None)


def _made(client: MlflowClient, name: str, entry: Entry, run: Run) -> ModelVersion:
    plain = name.replace(".", "_")  # MLflow takes no dots there
    logged = client.create_logged_model(
        run.info.experiment_id, plain, run.info.run_id, dict(entry.tags)
    )
    try:
        with tempfile.TemporaryDirectory() as place:
            save(entry, Path(place) / "model")
            client.log_model_artifacts(logged.model_id, str(Path(place) / "model"))
        client.finalize_logged_model(logged.model_id, "READY")
    except BaseException:
        with suppress(MlflowException, OSError):
            client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.log_outputs(run.info.run_id, [LoggedModelOutput(logged.model_id, 0)])
    with _may_be_there():
        client.create_registered_model(name)
    return client.create_model_version(
        name, f"models:/{logged.model_id}", run.info.run_id, dict(entry.tags),
        description=entry.text, model_id=logged.model_id,
    )  # fmt: skip


@contextmanager
def _may_be_there() -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        if error.error_code != _EXISTS:
            raise


def save(entry: Entry, folder: Path) -> None:
    """Write the model with its signature into a new folder."""
    with torch.no_grad():
        output = entry.model(entry.example)
    example = entry.example.numpy()
    mlflow.pytorch.save_model(
        entry.model,
        str(folder),
        signature=ModelSignature(_schema(entry.example), _schema(output)),
        input_example=example,
        serialization_format="pt2",
        pip_requirements=[f"{name}=={_plain(version(name))}" for name in _NEEDS],
        extra_files=[str(file) for file in entry.files],
    )


def _schema(value: Tensor) -> Schema:
    """Any number of items of the value's shape."""
    array: Any = value.numpy()
    return Schema([TensorSpec(array.dtype, (-1, *array.shape[1:]))])


def _plain(text: str) -> str:
    """A version without its local part, which no registry has."""
    return text.partition("+")[0]
