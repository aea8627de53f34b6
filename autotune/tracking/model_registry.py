"""Registration of the model of a study's best trial in MLflow's model registry.

The model is stored as a graph by `torch.export` (MLflow's `pt2`): loading it needs neither a class
nor pickled code.
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
class ModelToRegister:
    """A model to register, with an example of its input and its metadata.

    Args:
        study_id, trial: the trial that the weights are from.
        files: extra files of the model.
        tags: of the version.
        text: the description of the version.
    """

    study_id: str
    trial: int
    module: nn.Module
    example: Tensor
    files: Sequence[Path]
    tags: Mapping[str, str]
    text: str


def register(
    uri: str, name: str, model: ModelToRegister, patience: float = _PATIENCE_SECONDS
) -> tuple[int, bool]:
    """Register the model as a version of `name`; return its number and whether it is new.

    If the trial's model is registered already, its version gets the current tags.

    Args:
        patience: seconds to wait for the trial's run.

    Raises:
        UserError: MLflow has no run of the trial by then.
        MlflowException, OSError: from MLflow and the store of artifacts.
    """
    client = MlflowClient(tracking_uri=uri)
    run = _run(client, model, patience)
    found = _version(client, name, run)
    if found is None:
        return int(_create_version(client, name, model, run).version), True
    for key, value in model.tags.items():
        client.set_model_version_tag(name, found.version, key, value)
    client.update_model_version(name, found.version, model.text)
    return int(found.version), False


def _run(client: MlflowClient, model: ModelToRegister, patience: float) -> Run:
    """The trial's run; waits for it, as the mirror may still write it."""
    wanted = f"tags.`autotune.study_id` = '{model.study_id}'"
    wanted += f" AND tags.`autotune.trial` = '{model.trial}'"
    deadline = time.monotonic() + patience
    while True:
        experiments = [e.experiment_id for e in client.search_experiments()]
        if found := client.search_runs(experiments, wanted):
            return found[0]
        if time.monotonic() >= deadline:
            raise UserError(f"MLflow has no run of trial {model.trial} yet")
        time.sleep(_POLL_SECONDS)


def _version(client: MlflowClient, name: str, run: Run) -> ModelVersion | None:
    made = client.search_model_versions(f"run_id = '{run.info.run_id}'")
    found = (v for v in made if v.name == name)
    return max(found, key=lambda v: int(v.version), default=None)


def _create_version(
    client: MlflowClient, name: str, model: ModelToRegister, run: Run
) -> ModelVersion:
    logged_name = name.replace(".", "_")  # MLflow takes no dots there
    logged = client.create_logged_model(
        run.info.experiment_id, logged_name, run.info.run_id, dict(model.tags)
    )
    try:
        with tempfile.TemporaryDirectory() as place:
            save(model, Path(place) / "model")
            client.log_model_artifacts(logged.model_id, str(Path(place) / "model"))
        client.finalize_logged_model(logged.model_id, "READY")
    except BaseException:
        with suppress(MlflowException, OSError):
            client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.log_outputs(run.info.run_id, [LoggedModelOutput(logged.model_id, 0)])
    with _ignoring_existing():
        client.create_registered_model(name)
    return client.create_model_version(
        name, f"models:/{logged.model_id}", run.info.run_id, dict(model.tags),
        description=model.text, model_id=logged.model_id,
    )  # fmt: skip


@contextmanager
def _ignoring_existing() -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        if error.error_code != _EXISTS:
            raise


def save(model: ModelToRegister, folder: Path) -> None:
    """Write the model with its signature into a new folder."""
    with torch.no_grad():
        output = model.module(model.example)
    example = model.example.numpy()
    mlflow.pytorch.save_model(
        model.module,
        str(folder),
        signature=ModelSignature(_schema(model.example), _schema(output)),
        input_example=example,
        serialization_format="pt2",
        pip_requirements=[f"{name}=={_public_version(version(name))}" for name in _NEEDS],
        extra_files=[str(file) for file in model.files],
    )


def _schema(value: Tensor) -> Schema:
    """The schema of a batch of any size with items of the value's shape."""
    array: Any = value.numpy()
    return Schema([TensorSpec(array.dtype, (-1, *array.shape[1:]))])


def _public_version(text: str) -> str:
    """A version without its local part, which package registries do not have."""
    return text.partition("+")[0]
