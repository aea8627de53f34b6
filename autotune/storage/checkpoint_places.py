"""How a journal names checkpoints: those below its study folder relative to it.

So a study folder can be moved or copied. Elsewhere, in `FailurePolicy(checkpoint_folder=...)`, a
checkpoint has its absolute path or its URL. In memory all paths are those of the present folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.storage.checkpoint_files import OWN, is_url
from autotune.trial import Checkpoint, Saved, Suggested

_OWN = re.compile(rf"/.*/({OWN}/trial-\d+/step-\d+)", re.DOTALL)


def stored(path: str, folder: Path) -> str:
    """The path of a checkpoint as the journal of the study folder names it.

    >>> stored("/a/digits/checkpoints/trial-0007/step-100", Path("/a/digits"))
    'checkpoints/trial-0007/step-100'
    """
    return path.removeprefix(f"{folder.absolute()}/")


def located(path: str, folder: Path) -> str:
    """The path or URL of a checkpoint that the journal of the study folder names so.

    Journals of version 2 have absolute paths. One that was in the study's own folder, wherever that
    was, is in the present one.

    >>> located("/a/digits/checkpoints/trial-0007/step-100", Path("/b/copy"))
    '/b/copy/checkpoints/trial-0007/step-100'
    """
    own = below(path)
    if own is None and (path.startswith("/") or ":" in path.partition("/")[0]):
        return path
    return f"{folder.absolute()}/{own or path}"


def stored_folder(place: str, folder: Path) -> str:
    """`FailurePolicy(checkpoint_folder=...)`, an absolute path or a URL, as the manifest names it.

    >>> stored_folder("/a/digits/mine", Path("/a/digits")), stored_folder("/b", Path("/a/digits"))
    ('mine', '/b')
    """
    return "." if place == str(folder.absolute()) else stored(place, folder)


def located_folder(place: str, folder: Path) -> str:
    """The checkpoint folder that the manifest of the study folder names so.

    Earlier versions wrote one relative to the working directory.

    >>> located_folder("mine", Path("/b/copy")), located_folder("s3://a/b", Path("/b/copy"))
    ('/b/copy/mine', 's3://a/b')
    """
    if place.startswith("/") or is_url(place):
        return place
    own, earlier = folder.absolute() / place, Path(place).absolute()
    return str(earlier if earlier.is_dir() and not own.is_dir() else own)


def below(path: str) -> str | None:
    """The part of a checkpoint's path below the study's own folder, if it is there.

    >>> below("/a/digits/checkpoints/trial-0007/step-100")
    'checkpoints/trial-0007/step-100'
    """
    found = _OWN.fullmatch(path)
    return found[1] if found is not None else None


def placed(entry: Any, place: Callable[[str, Path], str], folder: Path) -> Any:
    """The entry with `place(path, folder)` as the path of its checkpoint, if it has one."""

    def moved(checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, path=place(checkpoint.path, folder))

    if isinstance(entry, Saved):
        return replace(entry, checkpoint=moved(entry.checkpoint))
    if isinstance(entry, Suggested) and entry.origin is not None:
        origin = replace(entry.origin, checkpoint=moved(entry.origin.checkpoint))
        return replace(entry, origin=origin)
    return entry
