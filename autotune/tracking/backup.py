"""A copy of a study folder in its MLflow run, from which a driver on another machine can resume.

The folder `study/` of the study's run has the journal as far as it was read, `experiment.json`,
what the study knew of others, the policies of sampler and controller, and the checkpoints that a
resume needs. `manifest.json` lists them with size and digest. It is written after the files, and
files that it no longer lists are removed after it, so that the listed copy is complete at any time.
The manifest contains the text of documents that change while the study runs, as newer ones may
already be uploaded beside it. The journal of a later driver elsewhere has another name, as its
lines differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from autotune.algorithms.ranking.best import by_result
from autotune.storage import manifest
from autotune.storage.checkpoint_files import link
from autotune.storage.checkpoint_places import below, located, placed
from autotune.storage.journal import JOURNAL, VERSION, Closed, Opened, from_line, version_after
from autotune.trial import Checkpoint, Target, Trial, fold

COPY, MANIFEST = "study", "manifest.json"
CHECKPOINTS = "checkpoints"
ORIGIN = "fetched.json"  # in a fetched folder: the names of its journals in the store
MIRRORED = "autotune.mirrored"  # the tag with the time of the last heartbeat
ALIVE_SECONDS = 180.0  # a copy with a heartbeat not older than this has a driver
_HEARTBEAT_SECONDS = 60.0  # between two heartbeats, also during an upload
WATCH_SECONDS = 2 * _HEARTBEAT_SECONDS  # within which a live driver sends a heartbeat
_SHORTEST_PAUSE, _SHARE = 5.0, 10.0  # pause between copies: least seconds, least multiple
_TRIES = 5
_OWN = ("mlflow.json", ORIGIN)  # JSON files of the folder that are left out


class CopyStore(Protocol):
    """A store for the copy. Its methods raise whatever the store raises."""

    def upload(self, number: int, folder: Path) -> None:
        """Add the files in `folder` to the run."""

    def remove(self, number: int, names: Iterable[str]) -> None:
        """Remove files or folders from the run, where the store can."""

    def list_files(self, number: int, folder: str) -> list[str]:
        """The names of the run's files below a folder, as `remove` takes them."""

    def tag(self, number: int, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""


@dataclass(frozen=True)
class File:
    """A file of the copy: its size in bytes, its SHA-256 and, of a document, its text."""

    size: int
    digest: str
    text: str | None = field(default=None, compare=False)

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry in the manifest."""
        entry = {"size": self.size, "sha256": self.digest}
        return entry if self.text is None else {**entry, "text": self.text}


class Backup:
    """Updates the copy of one study. `run` is the number of the study's own run."""

    def __init__(self, folder: Path, run: int) -> None:
        self._folder = folder
        self._run = run
        self._earlier, self._journal = _names(folder)
        self.reset()

    def reset(self) -> None:
        """Forget what was sent: all files are sent again."""
        self._sent: dict[str, File] = {}
        self._length = -1
        self._due = self._last_heartbeat = 0.0

    def keep(self, store: CopyStore, over: bool) -> None:
        """Send new files once the pause is over, or when the study is `over`."""
        now = time.monotonic()
        if not over:
            self.heartbeat(store)
        length = (self._folder / JOURNAL).stat().st_size
        if not over and (length == self._length or now < self._due):
            return
        with tempfile.TemporaryDirectory() as place:  # on the study's file system
            _copy(self._folder, Path(place, COPY))
            with self.heartbeats(store):
                self._send(store, Path(place))
        self._length = length
        took = time.monotonic() - now
        self._due = time.monotonic() + max(_SHORTEST_PAUSE, _SHARE * took)
        self._send_heartbeat(store)

    def heartbeat(self, store: CopyStore) -> None:
        """Send a heartbeat if the last one is a minute old."""
        if time.monotonic() - self._last_heartbeat > _HEARTBEAT_SECONDS:
            self._send_heartbeat(store)

    def _send_heartbeat(self, store: CopyStore) -> None:
        store.tag(self._run, {MIRRORED: str(int(time.time()))})
        self._last_heartbeat = time.monotonic()

    @contextlib.contextmanager
    def heartbeats(self, store: CopyStore) -> Iterator[None]:
        """Send heartbeats from a thread inside the context, as a large upload may take long.

        A heartbeat shows that a process works for the study, not that the store is fast.
        """
        done = threading.Event()

        def work() -> None:
            while not done.wait(_HEARTBEAT_SECONDS):
                with contextlib.suppress(Exception):  # the upload raises the store's errors
                    self._send_heartbeat(store)

        thread = threading.Thread(target=work, name="autotune-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _send(self, store: CopyStore, place: Path) -> None:
        copy = place / COPY
        files = {p.relative_to(copy).as_posix(): p for p in sorted(copy.rglob("*")) if p.is_file()}
        known = {name: self._sent[name] for name in files if name in self._sent and _is_final(name)}
        made = {name: known.get(name) or _described(name, path) for name, path in files.items()}
        files[JOURNAL] = files[JOURNAL].rename(copy / self._journal)
        for name in [n for n in files if made[n] == self._sent.get(n)]:
            files[name].unlink()
        store.upload(self._run, place)
        entries = {n: file.entry for n, file in made.items()}
        listing = {"journal": self._journal, "files": entries}
        with tempfile.TemporaryDirectory() as other:
            (Path(other) / COPY).mkdir()
            (Path(other) / COPY / MANIFEST).write_text(json.dumps(listing, indent=1))
            store.upload(self._run, Path(other))
        before = self._sent or self._leftover_checkpoints(store)
        gone = {str(Path(name).parent) for name in before if name not in made}
        still = {str(Path(name).parent) for name in made}
        old = [self._earlier] if self._earlier and not self._sent else []
        store.remove(self._run, [f"{COPY}/{name}" for name in [*sorted(gone - still), *old]])
        self._sent = made

    def _leftover_checkpoints(self, store: CopyStore) -> list[str]:
        """Checkpoints in the store from another process or from an incomplete copy."""
        names = list[str]()
        with contextlib.suppress(Exception):  # the copy is complete, and the store keeps too much
            names = store.list_files(self._run, f"{COPY}/{CHECKPOINTS}")
        return [name.removeprefix(f"{COPY}/") for name in names]


def needed(trials: Mapping[int, Trial], target: Target) -> list[Trial]:
    """The trials whose checkpoints a resume needs: resumable ones and the best one."""
    saved = {n: found[0] for n, t in trials.items() if (found := checkpoints(t, target))}
    order = [t.number for t in by_result(list(trials.values()), target) if t.number in saved]
    best = next((n for n in order if Path(saved[n].path).is_dir()), None)
    return [trials[n] for n in saved if trials[n].resumable or n == best]


def checkpoints(trial: Trial, target: Target) -> list[Checkpoint]:
    """The checkpoints of a trial that are copied: the last to resume it, that of its result."""
    found = [trial.checkpoint] * trial.resumable + [target.checkpoint(trial)]
    return [saved for saved in dict.fromkeys(found) if saved]


def digest(path: Path) -> File:
    """Size and digest of a file."""
    made = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            made.update(block)
        return File(file.tell(), made.hexdigest())


def _described(name: str, path: Path) -> File:
    """The description of a file for the manifest."""
    whole = not _is_final(name) and name != JOURNAL  # that one only grows
    return replace(digest(path), text=path.read_text("utf-8") if whole else None)


def _names(folder: Path) -> tuple[str, str]:
    """The journal's name in the copy that the folder was fetched from, if any, and in its own copy.

    The journal of a fetched folder may differ: it lacks checkpoints that were not in the copy.
    """
    try:
        earlier, own = json.loads((folder / ORIGIN).read_bytes())
    except (OSError, ValueError, TypeError):
        return "", JOURNAL
    return str(earlier), str(own)


def generation(journal: str) -> int:
    """The number of folders that a study has had, from the name of its journal in the copy.

    >>> generation("journal.jsonl"), generation("journal-3.jsonl")
    (1, 3)
    """
    number = re.fullmatch(r"journal-(\d+)\.jsonl", journal)
    return int(number[1]) if number else 1


def own_generation(folder: Path) -> int:
    """The generation of a study folder."""
    return generation(_names(folder)[1])


def trials_in(lines: Sequence[bytes], folder: Path) -> dict[int, Trial]:
    """The trials of the lines of the folder's journal."""
    events, version = [], VERSION
    for line in lines:
        entry = from_line(line, version)
        version = version_after(entry, version)
        if not isinstance(entry, Opened | Closed):
            events.append(placed(entry, located, folder))
    return fold(events)


def target_in(folder: Path) -> Target:
    """The target in the study's manifest."""
    return Target(**manifest.read(folder)["target"])


def _is_final(name: str) -> bool:
    """Whether a file never changes after it was written."""
    return name.startswith(f"{CHECKPOINTS}/") or name == manifest.EXPERIENCE


def _copy(folder: Path, copy: Path) -> None:
    """Copy the current state of the study folder.

    Checkpoints are hard links, which cost nothing and survive if the driver removes the originals.
    If a checkpoint is missing, a newer one has replaced it, and the journal is read again. One that
    was never on this machine (it was written on another node) is left out in the end: its trial
    starts again.
    """
    target = target_in(folder)
    for _ in range(_TRIES):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        data = (folder / JOURNAL).read_bytes()
        data = data[: data.rfind(b"\n") + 1]
        (copy / JOURNAL).write_bytes(data)
        trials = needed(trials_in(data.splitlines(), folder), target)
        found = [_link(Path(c.path), copy) for t in trials for c in checkpoints(t, target)]
        if all(found):
            break
    for path in [*folder.glob("*.json"), folder / manifest.EXPERIENCE]:
        if path.name not in _OWN and path.is_file():
            shutil.copyfile(path, copy / path.name)


def _link(checkpoint: Path, copy: Path) -> bool:
    """Link the checkpoint's files into the copy; return whether they exist."""
    name = below(str(checkpoint))
    if name is None:  # it is outside the study folder
        return True
    try:
        for file in [f for f in checkpoint.iterdir() if f.is_file()]:
            to = copy / name / file.name
            to.parent.mkdir(parents=True, exist_ok=True)
            link(file, to)
    except FileNotFoundError:
        shutil.rmtree(copy / name, ignore_errors=True)
        return False
    return True


def seconds_since_heartbeat(tags: Mapping[str, str]) -> float:
    """Seconds since the last heartbeat, by the clocks of two machines."""
    try:
        return time.time() - float(tags[MIRRORED])
    except (KeyError, ValueError):
        return float("inf")


def alive(status: str, tags: Mapping[str, Any]) -> bool:
    """Whether a driver works on the study whose run has this status and these tags."""
    return status == "RUNNING" and seconds_since_heartbeat(tags) < ALIVE_SECONDS


def ahead(tags: Mapping[str, str]) -> bool:
    """Whether the heartbeat is so far in the future that one of the clocks must be wrong."""
    return seconds_since_heartbeat(tags) < -ALIVE_SECONDS
