"""The study folder's own tracking store: `mlflow.db`, with `artifacts/` beside it.

It is a view: one that MLflow cannot open is put aside and made again from the journal. MLflow
stores absolute addresses of artifacts in it, which are corrected where the folder was moved.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path

from autotune.storage import atomic
from autotune.tracking.mirror import ARTIFACTS, STORE

_ADDRESSES = (  # the columns of MLflow's tables that have addresses of artifacts
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BESIDE = ("-journal", "-wal", "-shm")  # SQLite's own files
_LOCKED_SECONDS = 20.0  # how long another process may be writing
_NEW = ".new-"  # in the names of stores that are being made


class OwnFile:
    """The file of the store, which may be removed or replaced while MLflow has it open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / STORE
        self._inode = 0
        self._version: list[tuple[str]] = []  # of the tables that the present MLflow makes

    def make(self) -> None:
        """Make the store, if there is none, as a whole or not at all.

        MLflow makes its tables one after another, and cannot go on where it was killed.
        """
        if not self._path.exists():
            with self._new() as new:
                new.rename(self._path)

    def opened(self) -> None:
        """Note that MLflow has opened the present file."""
        self._inode = self._path.stat().st_ino

    def replaced(self) -> bool:
        """Whether the file that was opened is no longer there."""
        try:
            now = self._path.stat()
        except OSError:
            return self._inode != 0
        return self._inode not in (0, now.st_ino)

    def put_aside_if_damaged(self) -> Path | None:
        """Rename a file that is no whole SQLite database; its new name, if it was one.

        MLflow itself would try to open it for minutes.
        """
        return self._put_aside() if is_damaged(self._path) else None

    def put_aside_if_other_version(self) -> Path | None:
        """Rename a store that another version of MLflow made; its new name, if it was one.

        To be called where MLflow cannot open it. One whose version cannot be read stays.

        Raises:
            OSError, MlflowException: this version cannot make one here either.
        """
        if not self._version:
            with self._new() as new:
                self._version = _version(new) or []
        found = _version(self._path)
        same = not self._version or found is None or found == self._version
        return None if same else self._put_aside()

    @contextlib.contextmanager
    def _new(self) -> Iterator[Path]:
        """A new store beside this one, which is removed afterwards unless it was renamed.

        Its name is used only once: MLflow keeps its connection to a file, also to a removed one.
        """
        from mlflow import MlflowClient

        self._remove_new()  # of a process that was killed
        path = self._path.with_name(f"{STORE}{_NEW}{uuid.uuid4().hex}{atomic.SUFFIX}")
        try:
            MlflowClient(f"sqlite:///{path}").search_experiments(max_results=1)
            yield path
        finally:
            self._remove_new()

    def _remove_new(self) -> None:
        for left in self._path.parent.glob(f"{STORE}{_NEW}*"):  # SQLite's own files among them
            left.unlink(missing_ok=True)

    def _put_aside(self) -> Path:
        names = (self._path.with_name(f"{STORE}.aside-{n}") for n in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        self._path.rename(aside)
        for end in _BESIDE:  # of no use to the next store, and harmful to it
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{end}").rename(f"{aside}{end}")
        return aside


def relocate(folder: Path, study: str) -> None:
    """Correct the addresses of the study's artifacts in the store of a folder that was moved.

    Raises:
        sqlite3.Error: the store cannot be read or written.
    """
    path, now = folder.absolute() / STORE, (folder.absolute() / ARTIFACTS).as_uri()
    if not path.is_file():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=_LOCKED_SECONDS)) as store, store:
        wanted = (
            "SELECT artifact_location FROM experiments WHERE name = ? AND artifact_location != ? "
            "AND artifact_location LIKE ?"
        )
        for (old,) in _rows(store, wanted, study, now, f"file:%/{ARTIFACTS}"):
            for table, column in _ADDRESSES:
                change = (
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "  # noqa: S608
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?"
                )
                _rows(store, change, now, len(old) + 1, old, len(old) + 1, f"{old}/")


def _rows(store: sqlite3.Connection, command: str, *values: object) -> list[tuple[str]]:
    """The rows that the command gives; none where the store has no such table or column."""
    try:
        return store.execute(command, values).fetchall()
    except sqlite3.OperationalError as error:
        if "no such" in str(error):
            return []
        raise


def is_damaged(path: Path) -> bool:
    """Whether SQLite finds a file damaged; one that is missing, locked or unreadable is not."""
    if not path.is_file():
        return False
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_LOCKED_SECONDS)) as store:
            return _rows(store, "PRAGMA quick_check(1)") != [("ok",)]
    except sqlite3.DatabaseError as error:
        return error.sqlite_errorcode & 0xFF in _DAMAGED


def _version(path: Path) -> list[tuple[str]] | None:
    """The version of the store's tables, empty if it has none; None if it cannot be read."""
    place = f"{path.absolute().as_uri()}?mode=ro"  # a missing file is not made
    try:
        with contextlib.closing(sqlite3.connect(place, timeout=_LOCKED_SECONDS, uri=True)) as store:
            return _rows(store, "SELECT version_num FROM alembic_version")
    except sqlite3.DatabaseError:
        return None
