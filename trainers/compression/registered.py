"""The file of a registered model, from MLflow's registry: `best_model.pt` among its extra files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

_REGISTERED = re.compile(r"models:/[^/]+/\d+")
_FILE = "extra_files/best_model.pt"
_FEW = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
_QUIET = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}


@contextmanager
def local(teacher: str) -> Iterator[Path]:
    """The file of a path, or a copy of that of a registered model, `models:/NAME/VERSION`.

    Raises:
        ValueError: there is none, or MLflow is not installed; one line.
    """
    if _REGISTERED.fullmatch(teacher):
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, Path(_FILE).name)
            file.write_bytes(_downloaded(teacher))
            yield file
        return
    file = Path(teacher).expanduser()
    if not file.is_file():
        rule = "a file of a trained model or models:/NAME/VERSION"
        raise ValueError(f"teacher must be {rule}, got {teacher!r}")
    yield file


@lru_cache(maxsize=1)
def _downloaded(teacher: str) -> bytes:
    """By MLflow's own command: MLflow is slow to import, and a rank needs it only once."""
    what, uri = f"teacher {teacher}", os.environ.get("MLFLOW_TRACKING_URI", "")
    if find_spec("mlflow") is None:
        raise ValueError(f"{what} needs MLflow: pip install mlflow")
    if not uri:
        raise ValueError(f"{what} needs the address of its registry in MLFLOW_TRACKING_URI")
    with tempfile.TemporaryDirectory() as place:
        source = ["-u", f"{teacher}/{_FILE}", "-d", place]
        done = subprocess.run(  # noqa: S603 (a list of words and no shell)
            [sys.executable, "-m", "mlflow", "artifacts", "download", *source],
            env={**_FEW, **os.environ, **_QUIET},
            capture_output=True,
            text=True,
            check=False,
        )
        found = next(Path(place).rglob(Path(_FILE).name), None)
        if done.returncode == 0 and found is not None:
            return found.read_bytes()
    last = (done.stderr.strip().splitlines() or ["no file"])[-1]
    reason = last.replace(uri.rstrip("/"), "the registry")  # which may have a password
    raise ValueError(f"{what}: MLflow does not find its {_FILE}: {reason[:300]}")
