"""The folder in which summaries of studies are kept, one file for each, and the shipped ones.

The folder is the option `experience`, else AUTOTUNE_EXPERIENCE, else `autotune/experience` in the
user's data folder. Files that cannot be read are left out, with a line for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from autotune.errors import UserError
from autotune.storage import atomic
from autotune.study.experience import document
from autotune.study.experience.document import SUFFIX, Point, Summary
from autotune.study.option import OFF, folder_or_off

VARIABLE = "AUTOTUNE_EXPERIENCE"
_DATA = "XDG_DATA_HOME"
_SHIPPED = "data/experience.json.gz"  # in the package
Warn = Callable[[str], object]


def folder_of(option: str | Path | None) -> Path | None:
    """The folder that the option `experience` means; None where it is off.

    Args:
        option: a folder, "off", or None for the usual one.

    Raises:
        UserError: it is no folder, and nearly "off".
    """
    given = option if option is not None else os.environ.get(VARIABLE, "").strip()
    try:
        named = folder_or_off(given)
    except ValueError as error:
        raise UserError(f"{'experience' if option else VARIABLE} {error}") from None
    if named:
        return None if named == OFF else Path(named)
    data = os.environ.get(_DATA, "")
    home = Path(data) if Path(data).is_absolute() else Path(os.path.expanduser("~/.local/share"))
    return home / "autotune" / "experience"


def check(folder: Path) -> None:
    """Refuse what is there and is no folder.

    Raises:
        UserError: it is a file, or there can be no folder of this name.
    """
    try:
        is_none = folder.exists() and not folder.is_dir()
    except (OSError, ValueError) as error:  # a name that there can never be
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"experience (--experience) {str(folder)!r:.80}: {reason}") from None
    if is_none:
        raise UserError(f"experience (--experience) must be a folder or off but got {folder}")


def files(folder: Path) -> list[Path]:
    """The files of a folder, by name; none where there is no such folder.

    Raises:
        UserError: it cannot be read.
    """
    check(folder)
    try:
        return sorted(p for p in folder.iterdir() if p.name.endswith(SUFFIX))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from None


def kept(folder: Path, warn: Warn) -> dict[Path, list[Summary]]:
    """The summaries of a folder by their files; of a damaged file `warn` gets a line.

    Raises:
        UserError: the folder cannot be read.
    """
    found = {path: _read(path, warn) for path in files(folder)}
    return {path: summaries for path, summaries in found.items() if summaries}


def shipped(warn: Warn) -> list[Summary]:
    """The summaries that came with the package."""
    path = resources.files("autotune").joinpath(_SHIPPED)
    return _read(path, warn) if isinstance(path, Path) and path.is_file() else []


def published() -> list[Point]:
    """The published settings that came with the package, as canonical points."""
    path = resources.files("autotune").joinpath(_SHIPPED)
    if not path.is_file():
        return []
    try:
        return document.published(document.unpacked(path.read_bytes()))
    except ValueError:  # `shipped` has said so
        return []


def known(folder: Path, warn: Warn, *, with_shipped: bool = True) -> list[Summary]:
    """All summaries, each study once, by name: those of the folder, and the shipped ones with them.

    Raises:
        UserError: the folder cannot be read.
    """
    own = [summary for summaries in kept(folder, warn).values() for summary in summaries]
    others = shipped(warn) if with_shipped else []
    by_id = {summary.study_id: summary for summary in [*others, *own]}
    return sorted(by_id.values(), key=lambda summary: (summary.name, summary.study_id))


def write(folder: Path, summary: Summary) -> Path:
    """Write a study's file, whole or not at all, in place of its earlier one.

    Raises:
        OSError: it cannot be written.
        UserError: it is too large.
    """
    data = document.packed(document.document([summary]))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / summary.file_name
    atomic.write(path, data, concurrent=True)
    return path


def export(path: Path, summaries: Sequence[Summary]) -> None:
    """Write several summaries as one file.

    Raises:
        UserError: it cannot be written, or is too large.
    """
    try:
        atomic.write(path, document.packed(document.document(summaries)))
    except document.TooLargeError as error:
        count = len(summaries)
        fault = f"cannot write {path} with {count:,} studies: {error}"
        raise document.TooLargeError(fault) from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _read(path: Path, warn: Warn) -> list[Summary]:
    try:
        return document.read(path)
    except ValueError as error:
        warn(f"experience: {path} is ignored: {error}")
        return []
