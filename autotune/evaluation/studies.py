"""The studies of a folder, each in a few words: for lists and pages of them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.errors import UserError
from autotune.evaluation import summary
from autotune.storage import driver_lock
from autotune.storage import manifest as file
from autotune.storage.journal import JOURNAL
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study import earlier
from autotune.study import result as results
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.trial.wording import came_to, goal, lead, shown

RUNNING, KILLED = "running", "killed"
_PAUSES = 10.0  # a study is not read again before so many times the seconds that reading it took


@dataclass(frozen=True)
class Overview:
    """A study in a few words.

    Args:
        folder: the study folder.
        name: the study's name; the folder's, where its manifest is damaged.
        state: `running`, `killed` (its driver is gone without a word), or why it ended.
        done, planned: searched trials that ended, and how many there are to be.
        confirmations: how far they are, in words; empty if there are to be none.
        target, best: in words.
        spent_seconds: of worker groups.
        updated: when its journal last grew, in ISO 8601.
        command: what goes on with more trials.
        backend: where its trials run: `local` or `ray`; empty for a pool of the caller's.
        tracking_uri: as the study was given it.
        fault: why it cannot be read; then the rest is empty.
    """

    folder: Path
    name: str
    state: str = ""
    done: int = 0
    planned: int = 0
    confirmations: str = ""
    target: str = ""
    best: str = ""
    spent_seconds: float = 0.0
    updated: str = ""
    command: str = ""
    backend: str = ""
    tracking_uri: str | None = None
    fault: str = ""

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON types."""
        return {**asdict(self), "folder": str(self.folder)}


def is_study(folder: Path) -> bool:
    """Whether the folder holds a study: a journal, or a manifest."""
    return (folder / JOURNAL).is_file() or file.exists(folder)


def listed(folder: Path) -> list[Overview]:
    """The studies in a folder, by name; of a study's own folder that study.

    Raises:
        UserError: it is no folder that can be read, or holds no study.
    """
    return [overview(place) for place in ([folder] if is_study(folder) else found(folder))]


def found(folder: Path) -> list[Path]:
    """The study folders in a folder, by name.

    Raises:
        UserError: it is no folder that can be read, or holds no study.
    """
    try:
        own = sorted(place for place in folder.iterdir() if is_study(place))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from None
    if not own:
        raise UserError(f"{folder} holds no study: no folder in it has an {EXPERIMENT_JSON}")
    return own


def overview(folder: Path) -> Overview:
    """The study in a few words; one that cannot be read has its fault."""
    try:
        manifest = Manifest.read(folder)
        alive = driver_lock.is_held(folder / JOURNAL)
        result = results.read(folder, manifest.target, {manifest.target.metric})
        updated = datetime.fromtimestamp((folder / JOURNAL).stat().st_mtime, UTC)
    except (UserError, OSError) as error:
        return Overview(folder, folder.name, fault=str(error))
    options = manifest.options
    planned = max(options.trials, len(result.searched))
    ended = KILLED if result.ended == RUNNING else result.ended
    return Overview(
        folder,
        manifest.name,
        state=RUNNING if alive else ended,
        done=sum(t.ended for t in result.searched),
        planned=planned,
        confirmations=_confirmations(summary.confirmations(result, options)),
        target=goal(result.target),
        best=_best(result),
        spent_seconds=result.spent_seconds,
        updated=updated.isoformat(timespec="seconds"),
        command=_command(folder, manifest, planned),
        backend=str(options.backend) if options.backend != "auto" else "",
        tracking_uri=options.tracking_uri,
    )


class Overviews:
    """The studies of a folder, read again only where something has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[object, float, Overview]] = {}

    def read(self) -> list[Overview]:
        """All studies of the folder, by name.

        Raises:
            UserError: the folder cannot be read, or holds no study any more.
        """
        places = found(self.folder)
        self._known = {place: self._read(place) for place in places}
        return [self._known[place][2] for place in places]

    def _read(self, folder: Path) -> tuple[object, float, Overview]:
        """What stands for its state, when it may be read again, and the study in a few words."""
        state, now = stamp(folder), time.monotonic()
        known = self._known.get(folder)
        if known is not None and (known[0] == state or now < known[1]):
            return known
        made = overview(folder)
        took = time.monotonic() - now
        return state, time.monotonic() + _PAUSES * took, made


def stamp(folder: Path) -> object:
    """What differs once anything has been written, or a driver has come or gone."""
    own = []
    for name in (JOURNAL, EXPERIMENT_JSON):
        try:
            stat = (folder / name).stat()
        except OSError:
            own.append((0, 0))
        else:
            own.append((stat.st_size, stat.st_mtime_ns))
    return (*own, driver_lock.is_held(folder / JOURNAL))


def _best(result: StudyResult) -> str:
    """The best trial and its result; before there is one, how close one came."""
    best, target = result.best, result.target
    if best is None:
        near = came_to(target, result.nearest)
        return f"none; {near}" if near else ""
    again = result.confirmation(best)
    more = f", {shown(target, again.mean)} when confirmed" if again is not None else ""
    return f"{lead(target, best)}{more}"


def _confirmations(progress: Mapping[str, Any] | None) -> str:
    if progress is None:
        return ""
    if progress["planned"] is None:
        return "after the search"
    return f"{progress['done']} of {progress['planned']}"


def _command(folder: Path, manifest: Manifest, planned: int) -> str:
    """What goes on with half as many trials again."""
    more = planned + max(10, planned // 2)
    if manifest.options.recipe:
        return f"autotune resume {shlex.quote(str(folder))} --trials {more}"
    return earlier.go_on(manifest, folder, more)
