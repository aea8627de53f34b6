"""A copy of a study folder beside its MLflow run: what a driver on another machine goes on from.

Under `study/` of the study's run stand the journal as far as it was read, `experiment.json`, what
sampler and controller have learned, and the checkpoints that a resume needs. `manifest.json` names
them with size and digest. It is written after them, and what it no longer names is removed after
it, so that whatever breaks off, the copy that it names is whole. Documents that change while the
study runs stand in it as a whole: beside it there may already be the next ones. So may the journal
of a driver elsewhere that took the study up, whose lines are others: it has another name there.
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

from autotune.algorithms.ranking.best import by_time
from autotune.storage import manifest
from autotune.storage.checkpoint_files import link
from autotune.storage.journal import JOURNAL, Closed, Opened, from_line
from autotune.trial import Target, Trial, fold

COPY, MANIFEST = "study", "manifest.json"
CHECKPOINTS = "checkpoints"
ORIGIN = "fetched.json"  # of a folder that was fetched: the journal's names in the store
MIRRORED = "autotune.mirrored"  # the tag that says when the copy was last looked after
ALIVE_SECONDS = 180.0  # a copy looked after so lately has a driver
_SIGN_SECONDS = 60.0  # between two signs, also while something is uploaded
WATCH_SECONDS = 2 * _SIGN_SECONDS  # within which one that lives gives another sign
_SHORTEST_PAUSE, _SHARE = 5.0, 10.0  # between two copies: that long, and that many times one's time
_TRIES = 5
_OWN = ("mlflow.json", ORIGIN)  # JSON files of the folder that are a view's


class Keeper(Protocol):
    """Where the copy is kept. Its methods raise whatever the store raises."""

    def upload(self, number: int, folder: Path) -> None:
        """Add the files in `folder` to the run."""

    def remove(self, number: int, names: Iterable[str]) -> None:
        """Remove files or folders from the run, where the store can."""

    def held(self, number: int, folder: str) -> list[str]:
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
    def told(self) -> dict[str, Any]:
        """As the manifest has it."""
        told = {"size": self.size, "sha256": self.digest}
        return told if self.text is None else {**told, "text": self.text}


class Backup:
    """Keeps the copy of one study up to date. `run` is the number of the study's own run."""

    def __init__(self, folder: Path, run: int) -> None:
        self._folder = folder
        self._run = run
        self._earlier, self._journal = _names(folder)
        self.reset()

    def reset(self) -> None:
        """Forget what the store has: all of it is sent again."""
        self._sent: dict[str, File] = {}
        self._length = -1
        self._due = self._signed = 0.0

    def keep(self, store: Keeper, over: bool) -> None:
        """Send what is new since the last time, when the time has come, or the study is `over`."""
        now = time.monotonic()
        if not over:
            self.sign(store)
        length = (self._folder / JOURNAL).stat().st_size
        if not over and (length == self._length or now < self._due):
            return
        with tempfile.TemporaryDirectory() as place:  # the mirror's are on the study's file system
            _copy(self._folder, Path(place, COPY))
            with self.signing(store):
                self._send(store, Path(place))
        self._length = length
        took = time.monotonic() - now
        self._due = time.monotonic() + max(_SHORTEST_PAUSE, _SHARE * took)
        self._sign(store)

    def sign(self, store: Keeper) -> None:
        """Say, once a minute, that there is somebody who looks after the copy."""
        if time.monotonic() - self._signed > _SIGN_SECONDS:
            self._sign(store)

    def _sign(self, store: Keeper) -> None:
        store.tag(self._run, {MIRRORED: str(int(time.time()))})
        self._signed = time.monotonic()

    @contextlib.contextmanager
    def signing(self, store: Keeper) -> Iterator[None]:
        """Inside, the sign is given however long something takes, as one large upload may.

        The sign says that a process works for the study, and not that the store is quick.
        """
        done = threading.Event()

        def work() -> None:
            while not done.wait(_SIGN_SECONDS):
                with contextlib.suppress(Exception):  # who uploads is told of the store's trouble
                    self._sign(store)

        thread = threading.Thread(target=work, name="autotune-sign", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _send(self, store: Keeper, place: Path) -> None:
        copy = place / COPY
        files = {p.relative_to(copy).as_posix(): p for p in sorted(copy.rglob("*")) if p.is_file()}
        known = {name: self._sent[name] for name in files if name in self._sent and _is_final(name)}
        made = {name: known.get(name) or _told(name, path) for name, path in files.items()}
        files[JOURNAL] = files[JOURNAL].rename(copy / self._journal)
        for name in [n for n in files if made[n] == self._sent.get(n)]:
            files[name].unlink()
        store.upload(self._run, place)
        told = {"journal": self._journal, "files": {n: file.told for n, file in made.items()}}
        with tempfile.TemporaryDirectory() as other:
            (Path(other) / COPY).mkdir()
            (Path(other) / COPY / MANIFEST).write_text(json.dumps(told, indent=1))
            store.upload(self._run, Path(other))
        before = self._sent or self._left(store)
        gone = {str(Path(name).parent) for name in before if name not in made}
        still = {str(Path(name).parent) for name in made}
        old = [self._earlier] if self._earlier and not self._sent else []
        store.remove(self._run, [f"{COPY}/{name}" for name in [*sorted(gone - still), *old]])
        self._sent = made

    def _left(self, store: Keeper) -> list[str]:
        """The checkpoints that another process, or a copy that broke off, has left in the store."""
        names = list[str]()
        with contextlib.suppress(Exception):  # the copy is whole, and the store keeps too much
            names = store.held(self._run, f"{COPY}/{CHECKPOINTS}")
        return [name.removeprefix(f"{COPY}/") for name in names]


def needed(trials: Mapping[int, Trial], target: Target) -> list[Trial]:
    """The trials whose checkpoint a resume needs: those that run or were interrupted, the best."""
    saved = {n: Path(t.checkpoint.path) for n, t in trials.items() if t.checkpoint is not None}
    order = (t.number for t in by_time(list(trials.values()), target))
    best = next((n for n in order if n in saved and saved[n].is_dir()), None)
    return [trials[n] for n in saved if trials[n].resumable or n == best]


def digest(path: Path) -> File:
    """Size and digest of a file."""
    made = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            made.update(block)
        return File(file.tell(), made.hexdigest())


def _told(name: str, path: Path) -> File:
    """What the manifest says of a file."""
    whole = not _is_final(name) and name != JOURNAL  # that one only grows
    return replace(digest(path), text=path.read_text("utf-8") if whole else None)


def _names(folder: Path) -> tuple[str, str]:
    """What the journal is called in the copy that the folder was made of, if any, and in its own.

    A folder that was fetched has a journal of its own, with its own places of checkpoints.
    """
    try:
        earlier, own = json.loads((folder / ORIGIN).read_bytes())
    except (OSError, ValueError, TypeError):
        return "", JOURNAL
    return str(earlier), str(own)


def generation(journal: str) -> int:
    """How many folders a study has had until the one whose journal has this name in the copy.

    >>> generation("journal.jsonl"), generation("journal-3.jsonl")
    (1, 3)
    """
    number = re.fullmatch(r"journal-(\d+)\.jsonl", journal)
    return int(number[1]) if number else 1


def own_generation(folder: Path) -> int:
    """That of a study folder."""
    return generation(_names(folder)[1])


def trials_in(lines: Sequence[bytes]) -> dict[int, Trial]:
    """The trials of a journal's lines."""
    entries = [from_line(line) for line in lines]
    return fold([e for e in entries if not isinstance(e, Opened | Closed)])


def target_in(folder: Path) -> Target:
    """The target in the study's manifest."""
    return Target(**manifest.read(folder)["target"])


def below(path: str) -> str | None:
    """A checkpoint's place below its study folder, `checkpoints/trial-0007/step-100`."""
    parts = Path(path).parts
    if "://" in path or len(parts) < 3 or parts[-3] != CHECKPOINTS:
        return None
    return "/".join(parts[-3:])


def _is_final(name: str) -> bool:
    """Whether a file never changes once it is there."""
    return name.startswith(f"{CHECKPOINTS}/")


def _copy(folder: Path, copy: Path) -> None:
    """Make a copy of the study folder as of now.

    Checkpoints are links: they cost nothing, and outlive those that the driver removes meanwhile.
    Where one is gone, another has taken its place: the journal says which. One that was never on
    this machine (it was written on another node) is left out in the end: its trial begins anew.
    """
    for _ in range(_TRIES):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        data = (folder / JOURNAL).read_bytes()
        data = data[: data.rfind(b"\n") + 1]
        (copy / JOURNAL).write_bytes(data)
        trials = needed(trials_in(data.splitlines()), target_in(folder))
        kept = [t.checkpoint for t in trials if t.checkpoint]
        found = [_link(Path(checkpoint.path), copy) for checkpoint in kept]
        if all(found):
            break
    for path in folder.glob("*.json"):
        if path.name not in _OWN:
            shutil.copyfile(path, copy / path.name)


def _link(checkpoint: Path, copy: Path) -> bool:
    """Link the checkpoint's files into the copy; whether they are there."""
    name = below(str(checkpoint))
    if name is None:  # it is kept elsewhere
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


def signed(tags: Mapping[str, str]) -> float:
    """Seconds since the copy was last looked after, by the clocks of two machines."""
    try:
        return time.time() - float(tags[MIRRORED])
    except (KeyError, ValueError):
        return float("inf")


def alive(status: str, tags: Mapping[str, Any]) -> bool:
    """Whether a driver is working on the study whose run has this status and these tags."""
    return status == "RUNNING" and signed(tags) < ALIVE_SECONDS


def ahead(tags: Mapping[str, str]) -> bool:
    """Whether the sign is so far in the future that a clock is wrong: it says nothing then."""
    return signed(tags) < -ALIVE_SECONDS
