"""Whether an open file is still at its path: all that is written to one that is not is lost."""

from __future__ import annotations

import os
import time
from pathlib import Path

_SECONDS = 1.0  # between two looks


class StillThere:
    """Looks at a file's path, at most once a second.

    Args:
        path: the file's.
        handle: the number of the open file.
    """

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path.absolute()  # a trainer in this process may change the working directory
        self._handle = handle
        self._next = 0.0

    def gone(self) -> bool:
        """Whether the file is known to have been deleted or moved away."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _SECONDS
        try:
            os.stat(self._path)
            return os.fstat(self._handle).st_nlink == 0
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # it cannot be known now
            return False
