"""Make a study folder from a backup's copy, after verifying all of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import UserError
from autotune.storage.checkpoint_places import below
from autotune.storage.journal import JOURNAL
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.tracking.backup import (
    CHECKPOINTS,
    MANIFEST,
    ORIGIN,
    File,
    digest,
    generation,
    needed,
    target_in,
    trials_in,
)
from autotune.trial import Trial


def restore(copy: Path, folder: Path, say: Callable[[str], object]) -> None:
    """Make the study folder `folder` from a downloaded copy, after verifying all of it.

    A trial whose checkpoint is damaged starts again.

    Raises:
        UserError: it is no copy of a study, or its journal or manifest is damaged.
    """
    files, journal = read_manifest(copy)
    if (copy / journal).is_file():
        (copy / journal).replace(copy / JOURNAL)
    lost = set()
    for name, file in files.items():
        path = copy / name
        if name == JOURNAL and path.is_file():
            _truncate(path, file.size)  # an incomplete later copy may have uploaded its journal
        if file.text is not None:  # the file may be that of an incomplete later copy
            path.write_bytes(file.text.encode())
        if path.is_file() and digest(path) == file:
            continue
        if not name.startswith(f"{CHECKPOINTS}/"):
            raise UserError(
                f"the study's copy in MLflow is damaged: {name} is not what was written"
            )
        lost.add(Path(name).parent.as_posix())
    for name in sorted(lost):
        say(f"{name} is damaged in MLflow: its trial starts again")
        shutil.rmtree(copy / name, ignore_errors=True)
    for path in [p for p in copy.rglob("*") if p.is_file()]:
        if path.relative_to(copy).as_posix() not in files:
            path.unlink()
    _drop_lost(copy)
    own = f"journal-{generation(journal) + 1}.jsonl"
    (copy / ORIGIN).write_text(json.dumps([journal, own]) + "\n")
    folder.parent.mkdir(parents=True, exist_ok=True)
    copy.rename(folder)


def read_manifest(copy: Path) -> tuple[dict[str, File], str]:
    """The files of the copy, and the name that its journal has in it."""
    try:
        listing = json.loads((copy / MANIFEST).read_bytes())
        entries, journal = listing["files"], str(listing.get("journal", JOURNAL))
        files = {n: File(f["size"], f["sha256"], f.get("text")) for n, f in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"the study's copy in MLflow has no {MANIFEST}: {error!r:.100}") from None
    missing = {JOURNAL, EXPERIMENT_JSON} - set(files)
    names = [*files, journal]
    outside = [n for n in names if Path(n).is_absolute() or ".." in Path(n).parts]
    if missing or outside:
        raise UserError(f"the study's copy in MLflow is none: {[*missing, *outside]}")
    return files, journal


def _drop_lost(copy: Path) -> None:
    """Drop the checkpoints of resumable trials whose last one is not in the copy."""
    lines = (copy / JOURNAL).read_bytes().splitlines(keepends=True)
    wanted = needed(trials_in(lines, copy), target_in(copy))
    lost = {t.number for t in wanted if not _has_checkpoint(t, copy)}
    kept = [line for line in lines if not _is_saved_of(lost, json.loads(line))]
    (copy / JOURNAL).write_bytes(b"".join(kept))


def _is_saved_of(trials: Collection[int], entry: Mapping[str, Any]) -> bool:
    return entry["event"] == "saved" and entry["trial"] in trials


def _has_checkpoint(trial: Trial, copy: Path) -> bool:
    if trial.checkpoint is None or not trial.resumable:
        return True
    name = below(trial.checkpoint.path)
    return name is None or (copy / name).is_dir()


def _truncate(path: Path, size: int) -> None:
    if path.stat().st_size > size:
        os.truncate(path, size)
