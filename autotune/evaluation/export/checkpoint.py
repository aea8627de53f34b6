"""The checkpoint of an exported trial: its ranks' files, and only from where the study keeps them.

A journal may have come from somebody else. What it names elsewhere is not touched: no other folder
and no other address, and in the study's own folders no file but `rank-N.pt`, nor a link to another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.storage import checkpoint_files
from autotune.storage.checkpoint_places import located
from autotune.storage.retention import lies_within
from autotune.study.manifest import Manifest
from autotune.trial import Trial

_RANK = re.compile(r"rank-\d+\.pt")


@dataclass(frozen=True)
class RankFiles:
    """The files of a checkpoint in the folder or at the URL `place`; if none, `fault` says why."""

    place: str = ""
    names: Sequence[str] = ()
    fault: str = ""

    def copy(self, to: Path) -> None:
        """Copy the files into the folder `to`, if there are any.

        Raises:
            OSError: one cannot be copied.
        """
        if self.names:
            checkpoint_files.fetch(self.place, self.names, to)


def rank_files(manifest: Manifest, folder: Path, trial: Trial) -> RankFiles:
    """The files of the trial's checkpoint, in the study's folder wherever that is now."""
    checkpoint = trial.checkpoint
    if checkpoint is None:
        return RankFiles(fault="the trial saved none")
    place = located(checkpoint.path, folder)
    root = next((r for r in _roots(manifest, folder) if lies_within(place, r)), None)
    if root is None:
        return RankFiles(fault=f"{place} is not in a folder of the study's checkpoints")
    try:
        found = [n for n in checkpoint_files.names(place) if _RANK.fullmatch(n)]
    except OSError as error:
        return RankFiles(fault=f"{place} cannot be read: {error}")
    names = [n for n in found if checkpoint_files.is_url(place) or _is_own(Path(place, n), root)]
    if not names:
        return RankFiles(fault=f"there is none in {place} (the fastest trials keep theirs)")
    return RankFiles(place, sorted(names, key=lambda name: int(name[5:-3])))


def _is_own(file: Path, root: str) -> bool:
    return os.path.isfile(file) and lies_within(str(file), root)


def _roots(manifest: Manifest, folder: Path) -> list[str]:
    """Where the study keeps checkpoints: in its own folder, and where its manifest says."""
    roots = [str(folder.absolute() / checkpoint_files.OWN)]
    given = manifest.failure.get("checkpoint_folder")
    if isinstance(given, str) and given:
        roots.append(checkpoint_files.root_in(given, manifest.name, manifest.study_id))
    return roots
