"""The summary of a study as a document: written, and read with every value checked.

A file is gzipped JSON: `{"format": 1, "studies": [...]}`, with one study in a store's files and
several in an exported one. Its bytes follow from its content alone. Curves are kept at the twelve
marks of `algorithms.experience.known_task.MARKS`.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UserError, shown
from autotune.storage.codec import parsed
from autotune.study.experience.checks import (
    COLUMNS,
    MARKS_KEPT,
    WHAT,
    is_id,
    is_name,
    is_point,
    is_text,
    require,
)

if TYPE_CHECKING:  # it imports numpy
    from autotune.algorithms.experience.known_task import KnownTask

FORMAT = 1
SUFFIX = ".json.gz"
_LARGEST_FILE, _LARGEST_TEXT = 8 * 2**20, 64 * 2**20  # bytes, as they are and unpacked
_MOST_TRIALS, _MOST_STUDIES = 20_000, 10_000
Point = Mapping[str, Any]
Numbers = Sequence[float | None]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a study showed.

    Times are shares of the target's limit; without a limit, of its longest trial.

    Args:
        name: of the study.
        study_id: 32 hexadecimal digits.
        trainer: module and qualified name of its trainer.
        source: a checksum of the trainer's source; empty where that is not known.
        fingerprint: a checksum of trainer, space and fixed values: equal for runs of one study.
        target: metric, value, mode, clock, and the limit on it in seconds or steps.
        hardware: of most trials, in words.
        version: of autotune.
        points: the canonical points of its trials.
        times: the time to the target of each; None where it was not reached.
        ended: when each was seen last.
        curves: the best metric until each of the marks, signed so that higher is better; None where
            the trial was not seen.
        problem: the name of what was trained, whatever the optimizer, if it was trained with others
            to the same limit and no trial was stopped early; else empty, as for a user's study.

    Raises:
        ValueError: a value is not of its kind; it is named.
    """

    name: str
    study_id: str
    trainer: str
    source: str
    fingerprint: str
    target: Mapping[str, Any]
    hardware: str
    version: str
    points: Sequence[Point]
    times: Numbers
    ended: Sequence[float]
    curves: Sequence[Numbers]
    problem: str = ""

    def __post_init__(self) -> None:
        for name in ("trainer", "source", "fingerprint", "hardware", "version", "problem"):
            require(name, "a text", is_text(getattr(self, name)), getattr(self, name))
        require("name", "a study's name", is_name(self.name), self.name)
        require("study_id", "32 hexadecimal digits", is_id(self.study_id), self.study_id)
        require("target", "a dict of plain values", is_point(self.target), self.target)
        rows = len(self.points) if isinstance(self.points, Sequence) else -1
        for name, check in COLUMNS.items():
            column = getattr(self, name)
            require(name, "a list", isinstance(column, list | tuple), column)
            require(f"{name}, their number,", f"{rows}", len(column) == rows, len(column))
            for value in column:
                require(f"each of {name}", WHAT[name], check(value), value)
        most = f"at most {_MOST_TRIALS}"
        require("the number of points", most, rows <= _MOST_TRIALS, rows)

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON types; those that have a default only where they differ from it."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.default is MISSING}
        return {**named, "problem": self.problem} if self.problem else named

    @property
    def file_name(self) -> str:
        """The name of its file in a store."""
        return file_name(self.name, self.study_id)

    @property
    def reached(self) -> int:
        """How many of its trials reached the target."""
        return sum(time is not None for time in self.times)

    def task(self, *, same: bool = False) -> KnownTask:
        """The summary as what the sampler knows; `same` says whether it is of the same study."""
        import numpy as np

        from autotune.algorithms.experience.known_task import MARKS, KnownTask

        assert len(MARKS) == MARKS_KEPT, "the marks of format 1"

        def numbers(values: Sequence[Any], missing: float) -> Any:
            return np.array([missing if v is None else v for v in values], dtype=np.float64)

        curves = [numbers(curve, math.nan) for curve in self.curves]
        return KnownTask(
            self.name,
            [dict(point) for point in self.points],
            numbers(self.times, math.inf),
            numbers(self.ended, math.nan),
            np.stack(curves) if curves else np.empty((0, MARKS_KEPT)),
            same,
            self.problem,
        )

    def with_rows_of(self, task: KnownTask, points: Sequence[Point]) -> Summary:
        """The summary with the trials that a task of it has, whose public points are given."""

        def numbers(values: Any) -> list[float | None]:
            return [float(v) if math.isfinite(v) else None for v in values]

        return replace(
            self,
            points=points,
            times=numbers(task.times),
            ended=[float(v) for v in task.ended],
            curves=[numbers(curve) for curve in task.curves],
        )


def file_name(name: str, study_id: str) -> str:
    """The name of a study's file in a store."""
    return f"{name}-{study_id[:8]}{SUFFIX}"


def from_json(value: Any) -> Summary:
    """The summary that a document has.

    Raises:
        ValueError: it is none; in one line.
    """
    if not isinstance(value, dict):
        raise ValueError(f"a study must be a dict but got {shown(value)}")
    for field in fields(Summary):
        if field.name not in value and field.default is MISSING:
            raise ValueError(f"a study has no {field.name!r}")
    return Summary(**{f.name: value[f.name] for f in fields(Summary) if f.name in value})


# --- files ----------------------------------------------------------------------------------------


class TooLargeError(UserError):
    """A document that would be refused when it is read; the text says what is too much."""


def packed(content: Mapping[str, Any]) -> bytes:
    """A document as gzipped JSON: the same bytes for the same content.

    Raises:
        TooLargeError: it would be refused when it is read.
    """
    count = len(content.get("studies", ()))
    if count > _MOST_STUDIES:
        raise TooLargeError(f"it would have {count:,} studies (at most {_MOST_STUDIES:,})")
    text = json.dumps(content, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()
    if len(text) > _LARGEST_TEXT:
        size = f"{len(text):,} bytes unpacked (at most {_LARGEST_TEXT:,})"
        raise TooLargeError(f"it would have {size}")
    made = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=made, mtime=0, compresslevel=9) as file:
        file.write(text)
    data = made.getvalue()
    if len(data) > _LARGEST_FILE:
        raise TooLargeError(f"it would have {len(data):,} bytes (at most {_LARGEST_FILE:,})")
    return data


def unpacked(data: bytes) -> dict[str, Any]:
    """The document that was packed, of the format that this version knows.

    Raises:
        ValueError: it is none, is too large, or is of another format; in one line.
    """
    if len(data) > _LARGEST_FILE:
        raise ValueError(_too_large(len(data)))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(_LARGEST_TEXT + 1)
        if len(text) > _LARGEST_TEXT:
            raise ValueError(f"unpacked it has more than {_LARGEST_TEXT:,} bytes, the most allowed")
        found = parsed(text)
    except (OSError, EOFError, zlib.error):
        raise ValueError("it is no gzip file, or a damaged one") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(found, dict) or "format" not in found:
        raise ValueError("it is no file of experience")
    if found["format"] != FORMAT:
        raise ValueError(
            f"it has format {shown(found['format'])}, and this version of autotune reads {FORMAT}"
        )
    return found


def document(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Summaries as one document."""
    return {"format": FORMAT, "studies": [summary.to_json() for summary in summaries]}


def summaries(found: Mapping[str, Any]) -> list[Summary]:
    """The summaries of a document.

    Raises:
        ValueError: one is damaged, or there are none; in one line.
    """
    studies = found.get("studies")
    if not isinstance(studies, list):
        raise ValueError(f"its studies must be a list but got {shown(studies)}")
    if len(studies) > _MOST_STUDIES:
        raise ValueError(f"it has {len(studies):,} studies (at most {_MOST_STUDIES:,})")
    return [from_json(one) for one in studies]


def published(found: Mapping[str, Any]) -> list[Point]:
    """The canonical points of a document that no study has tried: published settings.

    Raises:
        ValueError: one is damaged.
    """
    entries = found.get("points", [])
    return [point for entry in entries for point in points(entry["points"])]


def points(found: Any) -> list[Point]:
    """Canonical points, checked.

    Raises:
        ValueError: they are none.
    """
    if not isinstance(found, list) or not all(map(is_point, found)):
        raise ValueError("points must be a list of dicts of plain values")
    return found


def read(path: Path) -> list[Summary]:
    """The summaries of a file.

    Raises:
        ValueError: it cannot be read or is damaged; in one line, without the path.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    if len(data) > _LARGEST_FILE:
        raise ValueError(_too_large(max(size, len(data))))
    try:
        return summaries(unpacked(data))
    except ValueError as error:  # also of text that is no UTF-8 or no JSON
        raise ValueError(" ".join(str(error).split())[:300]) from None


def _too_large(size: int) -> str:
    return f"it has {size:,} bytes (at most {_LARGEST_FILE:,})"
