"""What is said of an earlier run of a study: how much is done, a changed trainer, how to go on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autotune.algorithms.ranking.repeats import PROBE
from autotune.storage import journal
from autotune.storage.journal import JOURNAL, Entry
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study.manifest import Manifest
from autotune.trial import INTERRUPTED_REASONS, Ended, Interrupted, State, Suggested


def done(entries: Iterable[Entry], trials: int) -> str:
    """How many of so many trials were done, in words; repeats and probes are on top of them."""
    searched: set[int] = set()
    ended: set[int] = set()
    for entry in entries:
        match entry:
            case Suggested(repeats=None) if entry.kind != PROBE:
                searched.add(entry.trial)
            case Ended() if entry.reason not in INTERRUPTED_REASONS:
                ended.add(entry.trial)
            case Interrupted():
                ended.discard(entry.trial)
    return f"{len(searched & ended)} of {max(trials, len(searched))} trials were done"


def changed(before: Manifest, now: Manifest, entries: Iterable[Entry]) -> str:
    """That the trainer has changed since the study began; empty if it has not, or nobody knows.

    Trials that failed with the trainer before are named: they are not run again.
    """
    if None in (before.train_source, now.train_source) or before.train_source == now.train_source:
        return ""
    return (
        f"the trainer {now.train} has changed since this study began: trials before and after "
        f"cannot be compared{_failed(entries)}; another folder (out) begins a new study"
    )


def _failed(entries: Iterable[Entry]) -> str:
    """The searched trials that failed, in words."""
    kinds: dict[int, str] = {}
    failed: set[int] = set()
    for entry in entries:
        match entry:
            case Suggested(repeats=None) if entry.kind != PROBE:
                kinds[entry.trial] = " (the baseline)" * (entry.kind == "baseline")
            case Ended(state=State.FAILED):
                failed.add(entry.trial)
    names = [f"{number}{kind}" for number, kind in sorted(kinds.items()) if number in failed]
    return f", and those that failed are not run again: {', '.join(names)}" if names else ""


def go_on(manifest: Manifest, folder: Path, trials: int) -> str:
    """How to go on with a study that was started from Python, to so many trials in all."""
    arguments = f"out={str(folder)!r}, trials={trials}"
    if manifest.script is None:
        return f"autotune.run(experiment, {arguments}), or autotune.tune with these arguments"
    return f"run {_from_here(Path(manifest.script))} again with {arguments}"


def _from_here(file: Path) -> Path:
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


def free_folder(folder: Path) -> tuple[Path, str]:
    """A folder for a new study, and what there is to say of the study that was there before.

    It is this one, or with -2, -3 and so on after its name, where these hold studies.
    """
    number, free, last = 1, folder, folder
    while _is_taken(free):
        number += 1
        free, last = folder.with_name(f"{folder.name}-{number}"), free
    if number == 1:
        return folder, ""
    return free, f"{_said(last)}; this run begins {free} (out={str(last)!r} goes on with that one)"


def _is_taken(folder: Path) -> bool:
    return (folder / JOURNAL).is_file() or (folder / EXPERIMENT_JSON).is_file()


def _said(folder: Path) -> str:
    try:
        trials = Manifest.read(folder).options.trials
        return f"{folder}: {done(journal.entries(folder), trials)}"
    except ValueError:  # damaged, which is nothing to a new study
        return f"{folder} holds a study"
