"""The journal: what happened, one JSON object a line, on disk before it is acted on.

`DIR/journal.jsonl` is the truth about a study. Each line is an event of `autotune.trial` (or
`opened` and `closed`, when a driver began and stopped) with `event`, `at` (seconds since the study
began) and `time` (when it was written, for people). Everything else can be made again from it.

Each `opened` line carries the version of the lines that follow it. Version 2 added `ask` to
`suggested`; lines of version 1, which carried none, are read as before.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from autotune.errors import StudyError, UserError
from autotune.storage.codec import decode_entries, encode
from autotune.trial import (
    EVENTS,
    Change,
    Checkpoint,
    Clock,
    Event,
    Hardware,
    Origin,
    Report,
    State,
    Suggested,
)

JOURNAL = "journal.jsonl"
VERSION = 2  # of the lines that are written now
REPORT = "report.html"  # for people


@dataclass(frozen=True)
class Opened:
    """A driver began to work on the study, and writes lines of `version`."""

    study: str
    at: float = 0.0
    version: int = 1


@dataclass(frozen=True)
class Closed:
    """The driver stopped: `done`, `budget`, `interrupted`, or an error in one line."""

    reason: str
    at: float = 0.0


Entry = Event | Opened | Closed
_KINDS: Mapping[str, type] = {**EVENTS, "opened": Opened, "closed": Closed}
_NAMES: Mapping[type, str] = {kind: name for name, kind in _KINDS.items()}
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError)  # raised by a line that is no entry


def to_line(entry: Entry) -> str:
    """One line of the journal, without the time at which it is written."""
    kind = _NAMES[type(entry)]
    return json.dumps({"event": kind, **encode(entry)}, allow_nan=False, separators=(",", ":"))


def from_line(line: str | bytes) -> Entry:
    """The event on a line of the journal.

    Raises:
        ValueError: the line is no JSON object, or no event that this version knows.
    """
    data = json.loads(line)
    if not isinstance(data, dict) or data.get("event") not in _KINDS:
        raise ValueError(f"not a journal line: {line!r:.80}")
    kind = _KINDS[data.pop("event")]
    data.pop("time", None)
    for name, read in _READ.items():
        if data.get(name) is not None:
            data[name] = read(data[name])
    entry: Entry = kind(**data)
    return entry


def _report(data: dict[str, Any]) -> Report:
    metrics = {k: float(v) for k, v in data["metrics"].items()}
    return Report(data["step"], float(data["seconds"]), metrics, Clock(**data["clock"]))


def _checkpoint(data: dict[str, Any]) -> Checkpoint:
    sums = tuple(data.get("sums", ()))
    on = data.get("hardware")
    hardware = Hardware(**on) if on is not None else None
    return Checkpoint(data["step"], data["path"], Clock(**data["clock"]), sums, hardware)


def _origin(data: dict[str, Any]) -> Origin:
    return Origin(
        data["parent"],
        data["replaces"],
        _checkpoint(data["checkpoint"]),
        data["params"],
        tuple(_report(report) for report in data["reports"]),
        tuple((step, Change(**made)) for step, made in data["changes"]),
    )


_READ: Mapping[str, Callable[[Any], Any]] = {
    "config": decode_entries,
    "report": _report,
    "checkpoint": _checkpoint,
    "hardware": lambda data: Hardware(**data),
    "state": State,
    "change": lambda data: Change(**data),
    "origin": _origin,
}


class Journal:
    """The open journal of a study folder, locked by one driver at a time.

    Opening repairs a torn last line and reads what is there into `entries`.

    Raises:
        UserError: another driver has locked it, it is damaged, or the folder cannot be written.
        StudyError: a line cannot be written (the disk is full, say).
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open(self.path, "a+b", buffering=0)
        except OSError as error:
            raise UserError(f"cannot write the study folder {folder}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UserError(f"another process is running the study in {folder}") from None
        self.entries = _repair(self._file, self.path)
        self._on_disk = self._length()
        self._fault = ""

    def write(self, entry: Entry) -> None:
        """Append `entry` and flush it to disk."""
        self.append(entry)
        self.sync()

    def append(self, entry: Entry) -> None:
        """Append `entry`; nothing may be done because of it before `sync`."""
        if self._fault:
            raise StudyError(self._fault)
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = f'{to_line(entry)[:-1]},"time":"{time}"}}\n'
        end = self._length()
        try:
            left = memoryview(line.encode())
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._undone(end, error) from None

    def sync(self) -> None:
        """Flush to disk what has been appended."""
        end = self._length()
        if end == self._on_disk:
            return
        try:
            os.fdatasync(self._file.fileno())
        except OSError as error:
            # What others have acted on since is gone with it: this driver can write no more.
            self._fault = f"cannot write {self.path}: {error.strerror}"
            raise self._undone(self._on_disk, error) from None
        self._on_disk = end

    def _undone(self, end: int, error: OSError) -> StudyError:
        with contextlib.suppress(OSError):
            self._file.truncate(end)  # no later line may follow half of this one
        return StudyError(f"cannot write {self.path}: {error.strerror}")

    def _length(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def read(folder: Path) -> list[Entry]:
    """The entries of a study folder's journal, without opening it for writing.

    Raises:
        UserError: there is no journal, or it is damaged before its last line.
    """
    return list(entries(folder))


def entries(folder: Path) -> Iterator[Entry]:
    """`read`, one entry after the other: a long study's reports take many times their lines."""
    path = folder / JOURNAL
    if not path.is_file():
        raise UserError(f"{folder} is not a study folder: it has no {JOURNAL}")
    yield from _entries(path.read_bytes(), path)


def is_locked(folder: Path) -> bool:
    """Whether a driver is running the study in `folder` now."""
    try:
        with open(folder / JOURNAL, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _repair(file: IO[bytes], path: Path) -> list[Entry]:
    file.seek(0)
    data = file.read()
    end = _whole(data)
    if end < len(data):
        file.truncate(end)
        os.fdatasync(file.fileno())
    return list(_entries(data, path))


def _whole(data: bytes) -> int:
    """The length of `data` without a torn last line: incomplete, or not an entry."""
    end = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    try:
        if end:
            from_line(data[start:end])
    except _DAMAGE:
        return start
    return end


def _check_order(entry: Entry, suggested: set[int]) -> None:
    if isinstance(entry, Opened) and type(entry.version) is not int:
        raise ValueError(
            f"a journal's version must be a whole number but got {entry.version!r:.40}"
        )
    if isinstance(entry, Opened | Closed):
        return
    if type(entry.trial) is not int or entry.trial < 0:  # it names a folder, and a run
        raise ValueError(f"a trial's number must be a whole number but got {entry.trial!r:.40}")
    if isinstance(entry, Suggested) == (entry.trial in suggested):
        raise ValueError(f"trial {entry.trial}: {type(entry).__name__} cannot follow")
    suggested.add(entry.trial)


def _entries(data: bytes, path: Path) -> Iterator[Entry]:
    suggested: set[int] = set()
    for number, line in enumerate(io.BytesIO(data[: _whole(data)]), 1):
        try:
            entry = from_line(line.rstrip(b"\n"))
            _check_order(entry, suggested)
        except _DAMAGE as error:
            raise UserError(f"{path}: line {number} is damaged: {error}") from None
        if isinstance(entry, Opened) and entry.version > VERSION:
            raise UserError(
                f"{path}: line {number} was written by a later version of autotune: its journals "
                f"have version {entry.version}, and this one reads up to {VERSION}"
            )
        yield entry
