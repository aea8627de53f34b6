"""What the copier of a study asks of a tracking store, and what the store's errors say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from autotune.tracking.run_content import MetricPoint, RunContent

_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")  # MLflow's codes where values are at fault
_THROTTLED = ("REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED")  # and where requests are too many


class Store(Protocol):
    """The runs of one study in a tracking store. Its methods raise whatever the store raises."""

    runs: dict[int, str]

    def find_runs(self, known: Mapping[int, str]) -> None:
        """Find the existing runs; of two runs of a trial, keep the known one or the first."""

    def create(self, number: int, shown: RunContent) -> None:
        """Create the run of a trial, or of the STUDY, and add it to `runs`."""

    def log(self, number: int, points: Sequence[MetricPoint], shown: RunContent) -> None:
        """Add points, params and tags; existing ones are not added twice."""

    def upload(self, number: int, folder: Path) -> None:
        """Add the files in `folder` as artifacts."""

    def remove(self, number: int, names: Iterable[str]) -> None:
        """Remove artifacts, where the store can."""

    def list_files(self, number: int, folder: str) -> list[str]:
        """The names of the artifacts below a folder, as `remove` takes them."""

    def tag(self, number: int, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""

    def tag_experiment(self, tags: Mapping[str, str]) -> None:
        """Set tags of the experiment that has all the runs."""

    def set_status(self, number: int, shown: RunContent) -> None:
        """Set the run's status and, unless it is running, its end."""

    def check(self, number: int) -> None:
        """Raise where the store itself is at fault: it has lost the run, or takes no tags."""


def is_refused(error: Exception) -> bool:
    """Whether the same values would be refused again, and nothing was wrong on the way."""
    if code := _code(error):
        return code in _REFUSED
    wrong = isinstance(error, (ValueError, TypeError, OverflowError))
    return wrong and not isinstance(error, (OSError, json.JSONDecodeError))  # a proxy's answer


def is_throttled(error: Exception) -> bool:
    """Whether the store takes no more requests for now."""
    return _code(error) in _THROTTLED


def _code(error: Exception) -> str:
    """MLflow's code of an error; empty for one that is not MLflow's."""
    return str(getattr(error, "error_code", ""))
