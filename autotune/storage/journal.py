"""The journal: what happened, one JSON object a line, on disk before it is acted on.

`DIR/journal.jsonl` is the truth about a study. Each line is an event of `autotune.trial` (or
`opened` and `closed`, when a driver began and stopped) with `event`, `at` (seconds since the study
began) and `time` (when it was written, for people). Everything else can be made again from it.

Each `opened` line carries the version of the lines that follow it. Version 2 added `ask` to
`suggested`; in version 3 checkpoints below the study folder have paths relative to it;
version 4 added `waited` and `slowed_by` to reports, version 5 `ahead`, version 6 trials of kind
`probe`, which an older version would take for results, version 7 origins that replace no trial.
Lines of the versions before are read as they were.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from autotune.errors import StudyError, UserError, shown, text_of, unknown
from autotune.storage import driver_lock
from autotune.storage.annotated import reader
from autotune.storage.atomic import sync_content
from autotune.storage.checkpoint_places import located, placed, stored
from autotune.storage.codec import decode_entries, encode, parsed
from autotune.storage.still_there import StillThere
from autotune.trial import EVENTS, Event, Suggested
from autotune.trial.checks import is_whole
from autotune.trial.events import LONGEST_REASON, check_order, make_plain

JOURNAL = "journal.jsonl"
VERSION = 7  # of the lines that are written now
_CHECKED = 3  # since this version each line is read back before it is written
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

    def __post_init__(self) -> None:
        make_plain(self, reason=LONGEST_REASON)


Entry = Event | Opened | Closed
_KINDS: Mapping[str, type] = {**EVENTS, "opened": Opened, "closed": Closed}
_NAMES: Mapping[type, str] = {kind: name for name, kind in _KINDS.items()}


def to_line(entry: Entry) -> str:
    """One line of the journal, without the time at which it is written."""
    kind = _NAMES[type(entry)]
    return json.dumps({"event": kind, **encode(entry)}, allow_nan=False, separators=(",", ":"))


def from_line(line: str | bytes, version: int = VERSION) -> Entry:
    """The event on a line of the journal, whose last `opened` before it has this version.

    Versions 1 and 2 wrote some values that are refused now: a study that has them is still read.

    Raises:
        ValueError: the line is no JSON object, no event that this version knows, or one with a
            field that is missing, unknown or of the wrong type.
    """
    try:
        return _from_json(parsed(line), version < _CHECKED)
    except (RecursionError, OverflowError) as error:
        raise ValueError(text_of(error)) from None


def _from_json(data: Any, older: bool) -> Entry:
    if not isinstance(data, dict) or not isinstance(data.get("event"), str):
        raise ValueError(f"not a journal line: {data!r:.80}")
    name = data.pop("event")
    if name not in _KINDS:
        later = "a later version of autotune may have written it"
        raise ValueError(f"{unknown('event', name, _KINDS)}; {later}")
    version = data.get("version")
    if name == "opened" and is_whole(version, VERSION + 1):
        raise _LaterError(
            f"was written by a later version of autotune: its journals have version {version}, "
            f"and this one reads up to {VERSION}"
        )
    _check_time(data.pop("time", None))
    if isinstance(data.get("config"), dict):
        data["config"] = decode_entries(data["config"])
    if older and name == "ended" and "reason" in data:
        data["reason"] = str(data["reason"])  # what a pruner gave, of any type
    entry: Entry = reader(_KINDS[name], older)(data)
    return entry


def version_after(entry: Entry, version: int) -> int:
    """The version of the lines after an entry on a line of `version`."""
    return entry.version if isinstance(entry, Opened) else version


def _check_time(time: Any) -> None:
    try:
        if time is not None:
            datetime.fromisoformat(time)
    except (TypeError, ValueError):
        raise ValueError(f"time must be a time in ISO 8601 but got {shown(time)}") from None


class _LaterError(ValueError):
    """A line of a later version of autotune, which says so."""


class Journal:
    """The open journal of a study folder, locked by one driver at a time.

    Opening repairs a torn last line and reads what is there into `entries`. A line is written only
    if it can be read back.

    Raises:
        UserError: another driver has locked it, files cannot be locked there, it is damaged, the
            folder cannot be written, or an entry could not be read back.
        StudyError: a line cannot be written (the disk is full, say), or the journal is no longer at
            its path, as the study folder was deleted or moved.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open(self.path, "a+b", buffering=0)
        except OSError as error:
            raise UserError(f"cannot write the study folder {folder}: {error.strerror}") from None
        try:
            driver_lock.take(self._file, folder)
            self.entries = _repair(self._file, self.path)
        except UserError:
            self._file.close()
            raise
        self._suggested = {e.trial for e in self.entries if isinstance(e, Suggested)}
        self._on_disk = self._length()
        self._fault = ""
        self._still = StillThere(self.path, self._file.fileno())

    def write(self, entry: Entry) -> None:
        """Append `entry` and flush it to disk."""
        self.append(entry)
        self.sync()

    def append(self, entry: Entry) -> None:
        """Append `entry`; nothing may be done because of it before `sync`."""
        if not self._fault and self._still.gone():
            self._fault = f"{self.path.parent} was deleted or moved while its study ran"
        if self._fault:
            raise StudyError(self._fault)
        made = self._readable(placed(entry, stored, self.path.parent))
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = f'{made[:-1]},"time":"{time}"}}\n'
        end = self._length()
        try:
            left = memoryview(line.encode())
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._undone(end, error) from None
        if isinstance(entry, Suggested):
            self._suggested.add(entry.trial)

    def _readable(self, entry: Entry) -> str:
        """The line of the entry, which has been read back."""
        try:
            line = to_line(entry)
            check_order(from_line(line), self._suggested)
        except (ValueError, TypeError, RecursionError) as error:
            what = f"{type(entry).__name__} cannot be written down"
            raise UserError(f"{self.path}: {what}: {text_of(error)}") from error
        return line

    def sync(self) -> None:
        """Flush to disk what has been appended."""
        end = self._length()
        if end == self._on_disk:
            return
        try:
            sync_content(self._file.fileno())
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
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    yield from _entries(data, path)


def _repair(file: IO[bytes], path: Path) -> list[Entry]:
    file.seek(0)
    data = file.read()
    made = list(_entries(data, path))  # where it is damaged, or of a later version, nothing changes
    end = _whole(data)
    if end < len(data):
        file.truncate(end)
        sync_content(file.fileno())
    return made


def _whole(data: bytes) -> int:
    """The length of `data` without a torn last line: one that is incomplete, or no JSON."""
    end = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    try:
        json.loads(data[start:end] or b"0")
    except ValueError:
        return start
    except RecursionError:
        return end
    return end


def _entries(data: bytes, path: Path) -> Iterator[Entry]:
    suggested: set[int] = set()
    version = VERSION
    for number, line in enumerate(io.BytesIO(data[: _whole(data)]), 1):
        try:
            entry = from_line(line.rstrip(b"\n"), version)
            check_order(entry, suggested)
        except ValueError as error:
            what = "" if isinstance(error, _LaterError) else "is damaged: "
            raise UserError(f"{path}: line {number} {what}{error}") from None
        if isinstance(entry, Suggested):
            suggested.add(entry.trial)
        version = version_after(entry, version)
        yield placed(entry, located, path.parent)
