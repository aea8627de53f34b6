"""Recorded learning curves as known tasks: LCBench's and TaskSet's files, and tables of this form.

An `.npz` file has for some tasks (T) and configurations (N) the metric `val_accuracy` (T, N, E),
higher is better, and `time` (T, N, E), cumulative seconds; `tasks` (T,) names them and each
`cfg_NAME` (N,) is a parameter. A TaskSet file (`.json`, `.json.gz`) is a list of `hp` and
`valid.loss`, whose steps are the clock.
"""

from __future__ import annotations

import gzip
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from autotune.algorithms.experience.known_task import MARKS, Array, KnownTask
from autotune.algorithms.experience.names import canonical_name
from autotune.errors import UserError

_OTHER_FORM = ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error
_REACHED = 0.95  # quantile of the best metrics that is a task's own target


def read(file: Path) -> list[KnownTask]:
    """The tasks in a file.

    Raises:
        UserError: it cannot be read, or is of another form.
    """
    try:
        if file.suffix == ".npz":
            return _npz(file)
        if file.name.endswith((".json", ".json.gz")):
            return [_taskset(file)]
    except OSError as error:
        raise UserError(f"--data {file}: {error.strerror or error}") from None
    except _OTHER_FORM as error:
        raise UserError(f"--data {file}: not a table of recorded curves ({error})") from None
    raise UserError(f"--data {file}: must be a .npz, .json or .json.gz file of recorded curves")


def task(name: str, points: list[dict[str, Any]], metric: Array, seconds: Array) -> KnownTask:
    """A known task of whole recorded curves.

    Its limit is the median time of a whole run, its target what 5 % of the runs reach.

    Args:
        name: of the task.
        points: parameters by any known spelling, or canonical.
        metric: higher is better, nan where a run diverged, (runs, reports).
        seconds: cumulative, (runs, reports).
    """
    seconds = np.maximum.accumulate(seconds.astype(float), axis=1)
    best = np.maximum.accumulate(np.nan_to_num(metric.astype(float), nan=-np.inf), axis=1)
    limit = float(np.median(seconds[:, -1]))
    final = best[:, -1][np.isfinite(best[:, -1])]
    met = best >= np.quantile(final, _REACHED)
    index = np.arange(len(best))
    times = np.where(met.any(axis=1), seconds[index, met.argmax(axis=1)] / limit, np.inf)
    curves = np.full((len(best), len(MARKS)), np.nan)
    for row in index:
        seen = np.searchsorted(seconds[row] / limit, MARKS, side="right") - 1
        there = seen >= 0
        curves[row, there] = best[row, seen[there]]
    curves = np.where(np.isfinite(curves), curves, np.nan)
    canonical = [{canonical_name(k): v for k, v in point.items()} for point in points]
    times = np.where(times < 1.0, times, np.inf)
    return KnownTask(name, canonical, times, np.minimum(times, 1.0), curves)


def _npz(file: Path) -> list[KnownTask]:
    with np.load(file, allow_pickle=False) as data:
        metric, seconds = data["val_accuracy"], data["time"]
        names = [str(name) for name in data["tasks"]]
        columns = {key[4:]: data[key].tolist() for key in data.files if key.startswith("cfg_")}
    if metric.shape != seconds.shape or metric.ndim != 3 or len(names) != len(metric):
        raise ValueError(f"val_accuracy is {metric.shape}, time {seconds.shape}")
    points = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if len(points) != metric.shape[1]:
        raise ValueError(f"{len(points)} configurations for {metric.shape[1]} curves")
    return [task(f"{n}", points, m, s) for n, m, s in zip(names, metric, seconds, strict=True)]


def _taskset(file: Path) -> KnownTask:
    opened = gzip.open(file, "rt") if file.suffix == ".gz" else open(file)
    with opened as stream:
        runs = json.load(stream)
    loss = np.array([run["valid"]["loss"] for run in runs], dtype=float)
    steps = np.broadcast_to(np.arange(1.0, loss.shape[1] + 1), loss.shape)
    return task(file.name.partition(".")[0], [run["hp"] for run in runs], -loss, steps)
