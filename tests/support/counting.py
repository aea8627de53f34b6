"""What tests count: threads of linear algebra, and runs that MLflow shows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import threadpoolctl


def blas_threads() -> set[int]:
    """Those of each BLAS library that is loaded: NumPy's, and SciPy's own."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
    assert found
    return {library["num_threads"] for library in found}


def mlflow_runs(folder: Path) -> int:
    """How many runs the MLflow store of a study's folder has."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        ((runs,),) = store.execute("SELECT count(*) FROM runs")
    return int(runs)
