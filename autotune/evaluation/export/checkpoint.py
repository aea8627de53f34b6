"""The checkpoint of an exported trial: its ranks' files, and only from where the study keeps them.

A study folder may have come from somebody else. What its journal and its manifest name elsewhere is
not touched: no other folder and no other address, and in the study's own folders no file but
`rank-N.pt`. Such a file may not be a link, nor may the root of the checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.storage import checkpoint_files
from autotune.storage.checkpoint_files import without_file_protocol
from autotune.storage.checkpoint_places import located
from autotune.storage.retention import lies_within
from autotune.study.manifest import Manifest
from autotune.trial import Trial

_RANK = re.compile(r"rank-\d+\.pt")
_ONE_STORE = re.compile(r"[A-Za-z][\w+.-]+://(?!.*(://|::))", re.DOTALL)  # no chain of them


@dataclass(frozen=True)
class RankFiles:
    """The files of a checkpoint in the folder or at the URL `place`; if none, `fault` says why.

    `step` is that of the checkpoint.
    """

    place: str = ""
    names: Sequence[str] = ()
    fault: str = ""
    step: int | None = None

    def copy(self, to: Path) -> None:
        """Copy the files into the folder `to`, if there are any.

        Raises:
            OSError: one cannot be copied.
        """
        if self.names:
            checkpoint_files.fetch(self.place, self.names, to)


def rank_files(manifest: Manifest, folder: Path, trial: Trial) -> RankFiles:
    """The files of the trial's checkpoint (`Target.checkpoint`), wherever the study's folder is."""
    checkpoint = manifest.target.checkpoint(trial)
    if checkpoint is None:
        return RankFiles(fault="the trial saved none")
    place = without_file_protocol(located(checkpoint.path, folder))
    if not any(_is_own(place, root) for root in _roots(manifest, folder)):
        return RankFiles(fault=f"{place} is not in a folder of the study's checkpoints")
    try:
        found = [n for n in checkpoint_files.names(place) if _RANK.fullmatch(n)]
    except OSError as error:
        return RankFiles(fault=f"{place} cannot be read: {error}")
    names = [n for n in found if checkpoint_files.is_url(place) or _is_file(Path(place), n)]
    if not names:
        return RankFiles(fault=f"there is none in {place} (the fastest trials keep theirs)")
    names = sorted(names, key=lambda name: int(name[5:-3]))
    return RankFiles(place, names, step=checkpoint.step)


def _is_file(folder: Path, name: str) -> bool:
    """Whether the folder has a file of that name itself: a link may lead to any other."""
    file = folder.resolve() / name
    return file.is_file() and file.resolve() == file


def _roots(manifest: Manifest, folder: Path) -> list[str]:
    """Where the study keeps checkpoints: in its own folder, and where its manifest says."""
    roots = [str(folder.absolute() / checkpoint_files.OWN)]
    given = manifest.failure.get("checkpoint_folder")
    if isinstance(given, str) and given:
        given = without_file_protocol(given)
        roots.append(checkpoint_files.root_in(given, manifest.name, manifest.study_id))
    return roots


def _is_own(place: str, root: str) -> bool:
    """Whether the place is in this root, which may not be a link: that may lead to any folder.

    Nor may a URL be a chain of stores (`simplecache::file://`): the last may be this machine's
    disk, whose links nobody checks.
    """
    if not lies_within(place, root):
        return False
    if checkpoint_files.is_url(place):
        return _ONE_STORE.match(place) is not None
    return not Path(root).is_symlink()
