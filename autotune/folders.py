"""Removes folders that a journal names, and never any other.

A journal is read back from disk, perhaps from a disk that others write: a path in it is a claim.
"""

from __future__ import annotations

import shutil
from pathlib import Path


def remove(path: str | Path, *, within: Path) -> bool:
    """Remove the folder `path` with all that is in it, if it lies inside `within`; whether it does.

    Symbolic links are followed first, so that one inside does not lead to something outside.
    `within` itself stays.

    >>> remove("/etc", within=Path("studies"))
    False
    """
    try:
        place, home = Path(path).resolve(), within.resolve()
    except (OSError, ValueError, RuntimeError):  # too long, with a NUL, or links in a circle
        return False
    if place == home or not place.is_relative_to(home):
        return False
    shutil.rmtree(place, ignore_errors=True)
    return True
